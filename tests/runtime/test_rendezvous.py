from rayplane.runtime.group import Launch, RankMessage
from rayplane.runtime.rendezvous import Lobby, Rendezvous, hear, overdue
from rayplane.spec.layout import Layout
from rayplane.spec.plan import Placement

MEETING = Rendezvous(addresses=("a", "a", "b"), device="cpu", config={"seed": 1}, timeout_s=120.0, deadline_s=100.0)
READY = {"type": "ready"}


def ready(*ranks: int) -> Rendezvous:
    meeting = MEETING
    for rank in ranks:
        meeting, _, _ = hear(meeting, rank, READY)
    return meeting


def test_store_is_asked_for_when_the_last_rank_is_ready() -> None:
    meeting, orders, handed_on = hear(ready(2), 0, READY)
    assert (orders, handed_on) == ((), False)
    _, orders, _ = hear(meeting, 1, READY)
    assert orders == ((0, {"type": "host_store", "address": "a"}),)


def test_every_rank_joins_at_the_store_with_its_own_address() -> None:
    meeting, orders, handed_on = hear(ready(0, 1, 2), 0, {"type": "store", "host": "a", "port": 7})
    assert meeting.over and not handed_on
    assert [(rank, m["rank"], m["address"]) for rank, m in orders] == [(0, 0, "a"), (1, 1, "a"), (2, 2, "b")]
    assert all((m["type"], m["host"], m["port"], m["device"], m["config"]) == ("join", "a", 7, "cpu", {"seed": 1}) for _, m in orders)
    assert {m["lease"] for _, m in orders} == {None}


def test_other_messages_are_handed_on() -> None:
    assert hear(MEETING, 1, {"type": "failed", "kind": "user"}) == (MEETING, (), True)


def test_deadline_names_the_ranks_that_are_missing_once() -> None:
    assert overdue(ready(1), 99.0)[1] is None
    meeting, late = overdue(ready(1), 100.0)
    assert late and late.rank == 0 and late.message["message"] == "ranks 0, 2 did not get ready within 120 s of the start"
    assert overdue(meeting, 200.0)[1] is None


def test_deadline_names_rank_0_when_only_the_store_is_missing() -> None:
    _, late = overdue(ready(0, 1, 2), 100.0)
    assert late and late.rank == 0 and late.message["message"].startswith("rank 0 opened no store")


def test_no_deadline_after_joining() -> None:
    joined, _, _ = hear(ready(0, 1, 2), 0, {"type": "store", "host": "a", "port": 7})
    assert overdue(joined, 1e9)[1] is None


def test_while_ranks_are_called_back_the_end_of_a_node_is_kept_and_ends_of_our_own_doing_are_not() -> None:
    node, actor = ({"type": "lost", "reason": "gone", "kind": kind} for kind in ("node", "rank"))
    words = [RankMessage(0, {"type": "parked"}), RankMessage(1, node), RankMessage(2, actor), RankMessage(3, {"type": "exit"})]
    launch = Launch("dummy", Layout(dp=4), Placement(()), "dummy_rank", {})
    heard = iter([words])
    lobby = Lobby(launch, ("here",) * 4, 9.0, lambda _: next(heard, []), lambda _: None)
    assert lobby.recall(frozenset(range(4)), 9.0) == {0}
    assert lobby.poll(0.0) == [RankMessage(1, node)]
