"""The line of those who wait, and the GPUs of a node among the stages on it: decided without a cluster."""

from rayplane.runtime.ray.deal import Hand, deal
from rayplane.runtime.ray.queue import Ticket, line, ticket_of, tickets


def ticket(job: str, priority: int, since_ns: int, resource: str = "GPU") -> Ticket:
    return Ticket(job, priority, since_ns, resource, "8 GPU", job)


LATE, EARLY, URGENT, CPU = ticket("late", 0, 20), ticket("early", 0, 10), ticket("urgent", 5, 30), ticket("cpu", 9, 1, "CPU")


def test_priority_goes_before_arrival_and_arrival_before_nothing():
    named = [t.name for t in (LATE, EARLY, URGENT)]
    assert [t.job for t in tickets(["rayplane-demo", *named, ""])] == ["urgent", "early", "late"]


def test_a_name_holds_the_whole_ticket():
    mine = ticket_of('job "x"', -3, "GPU", "2 x 4 GPU, each in one island")
    assert tickets([mine.name]) == [mine]


def test_only_those_before_in_the_line_for_the_same_resource_are_waited_for():
    waiting = [LATE, EARLY, URGENT, CPU]
    assert line(LATE, waiting) == ([EARLY, URGENT], 3)
    assert line(EARLY, waiting) == ([URGENT], 3)
    assert line(URGENT, waiting) == ([], 3)
    assert line(CPU, waiting) == ([], 1)


def test_who_does_not_see_its_own_ticket_yet_counts_itself():
    assert line(LATE, [EARLY]) == ([EARLY], 2)


def test_gpus_of_a_node_are_dealt_in_the_order_of_ranks():
    hands = [Hand((2, 3), "n", ("10", "9")), Hand((0, 1), "n", ("2", "0")), Hand((4, 5), "m", ("1", "0"))]
    assert deal(hands) == [("9", "10"), ("0", "2"), ("0", "1")]


def test_instances_of_mig_keep_an_order_too():
    assert deal([Hand((1,), "n", ("MIG-a",)), Hand((0,), "n", ("3",))]) == [("MIG-a",), ("3",)]


def test_ranks_on_a_cpu_get_no_gpu():
    assert deal([Hand((0, 1), "n", ()), Hand((2,), "n", ())]) == [(), ()]
