"""Replicas die, hang and leave under way: no stream is lost, none is corrupted, and they are left within a second."""

import asyncio
import time

import openai
import pytest
from fake_engine import FakeEngine
from serving import Serving, expected

from rayplane.api.config import ReplicaAddress
from rayplane.api.health import fault
from rayplane.serve.sampling import SamplingParams
from rayplane.serve.wire import Pulse

STREAMS, TOKENS = 50, 60


async def stream(client, number: int, tokens: int = TOKENS) -> str:
    """The text of a stream that must not break."""
    fields = {"temperature": 0} if number % 2 else {"temperature": 1.0, "seed": number}
    out = []
    async for chunk in await client.completions.create(model="m", prompt=f"prompt {number}", max_tokens=tokens, stream=True, **fields):
        out.append(chunk.choices[0].text)
    assert chunk.choices[0].finish_reason == "length"
    return "".join(out)


def undisturbed(number: int) -> str:
    params = SamplingParams(temperature=0) if number % 2 else SamplingParams(temperature=1.0, seed=number)
    return expected(f"prompt {number}".encode(), TOKENS, params)


def engines(count: int) -> list[FakeEngine]:
    return [FakeEngine(f"r{i}", step_s=0.02) for i in range(count)]


def all_begun(serving: Serving) -> bool:
    """Whether every stream has some of its tokens."""
    works = [work for engine in serving.engines for work in engine.live.values()]
    return len(works) == STREAMS and all(len(work.output) > 3 for work in works)


async def disturbed(serving: Serving, disturb) -> list[str]:
    """The texts of streams during which something happens."""
    async with serving.aclient() as client:
        streams = [asyncio.ensure_future(stream(client, number)) for number in range(STREAMS)]
        await asyncio.to_thread(serving.until, lambda: all_begun(serving))
        assert not any(s.done() for s in streams)
        serving.do(disturb)
        return await asyncio.gather(*streams)


@pytest.mark.parametrize("way", ["kill", "stop", "hang"])
def test_streams_go_on_when_a_replica_is_lost(way):
    with Serving(*engines(3)) as serving:
        victim = serving.engines[1]
        texts = asyncio.run(disturbed(serving, getattr(victim, way)))
        assert texts == [undisturbed(number) for number in range(STREAMS)]
        assert serving.service.fleet.moved > 5
        resumed = [submit for e in serving.engines if e is not victim for submit in e.submitted if submit.generated]
        assert len(resumed) == serving.service.fleet.moved
        serving.until(lambda: not any(e.live for e in serving.engines if e is not victim))


def test_streams_survive_when_all_but_one_are_lost_one_after_the_other():
    with Serving(*engines(4)) as serving:

        def disturb():
            for i, engine in enumerate(serving.engines[:3]):
                serving.loop.call_later(0.1 * i, engine.kill)

        assert asyncio.run(disturbed(serving, disturb)) == [undisturbed(number) for number in range(STREAMS)]


def test_streams_wait_for_a_new_replica_when_there_is_none_left():
    with Serving(*engines(1)) as serving:

        def disturb():
            serving.engines[0].kill()
            serving.loop.call_later(0.3, lambda: serving.loop.create_task(come()))

        async def come():
            fresh = await FakeEngine("r9", step_s=0.001).start()
            serving.engines = (*serving.engines, fresh)
            serving.service.fleet.set_replicas([ReplicaAddress("r9", fresh.address)])

        assert asyncio.run(disturbed(serving, disturb)) == [undisturbed(number) for number in range(STREAMS)]


@pytest.mark.parametrize(("way", "limit_s"), [("kill", 0.2), ("stop", 1.1), ("hang", 1.1)])
def test_a_lost_replica_is_left_within_a_second(way, limit_s):
    """The best of some attempts: other work on the machine can only add to the time."""
    took_s = []
    while not took_s or (min(took_s) >= limit_s and len(took_s) < 4):
        with Serving(*engines(2)) as serving:
            serving.do(getattr(serving.engines[0], way))
            begun = time.monotonic()
            serving.until(lambda: serving.service.fleet.replicas[0].state == "lost", 10)
            took_s.append(time.monotonic() - begun)
    assert min(took_s) < limit_s


def test_a_replica_that_comes_back_is_used_again():
    with Serving(*engines(2)) as serving:
        port = serving.engines[0].port
        serving.do(serving.engines[0].kill)
        serving.until(lambda: serving.service.fleet.replicas[0].state == "lost")
        serving.engines = (FakeEngine("r0"), serving.engines[1])
        serving.call(serving.engines[0].start(port))
        serving.until(lambda: serving.service.fleet.replicas[0].state == "live")
        for _ in range(2):
            serving.client().completions.create(model="m", prompt="x", max_tokens=1)
        assert serving.engines[0].submitted


def test_one_that_is_no_longer_listed_finishes_and_is_left():
    with Serving(*engines(2)) as serving:

        def shrink():
            serving.service.fleet.set_replicas(serving.places()[1:])

        assert asyncio.run(disturbed(serving, shrink)) == [undisturbed(number) for number in range(STREAMS)]
        assert serving.service.fleet.moved == 0
        assert serving.engines[0].submitted
        serving.until(lambda: [r.id for r in serving.service.fleet.replicas] == ["r1"])
        serving.until(lambda: not serving.engines[0].connections)


def test_one_that_asks_for_no_more_gets_no_more():
    with Serving(*engines(2)) as serving:
        texts = asyncio.run(disturbed(serving, serving.engines[0].leave))
        assert texts == [undisturbed(number) for number in range(STREAMS)]
        before = len(serving.engines[0].submitted)
        for _ in range(4):
            serving.client().completions.create(model="m", prompt="x", max_tokens=1)
        assert len(serving.engines[0].submitted) == before
        assert serving.service.fleet.moved == 0


def test_an_address_of_another_replica_is_not_taken_for_this_one():
    with Serving(*engines(2)) as serving:
        wrong = ReplicaAddress("r0", serving.engines[1].address)
        serving.do(serving.service.fleet.set_replicas, [wrong])
        serving.until(lambda: "it is replica r1" in serving.service.fleet.replicas[0].reason)


def test_a_request_that_goes_down_with_every_replica_is_given_up():
    with Serving(*engines(5)) as serving:

        async def scene():
            client = serving.aclient()
            asked = asyncio.ensure_future(client.completions.create(model="m", prompt="x", max_tokens=400))
            there = list(serving.engines)
            for _ in range(4):
                await asyncio.to_thread(serving.until, lambda: any(e.live for e in there))
                carrier = next(e for e in there if e.live)
                there.remove(carrier)
                serving.do(carrier.kill)
            await asked

        with pytest.raises(openai.InternalServerError, match="on 4 replicas when they were lost"):
            asyncio.run(scene())


PULSE = Pulse(9, 0.0, 0.02, 0, 1, 0, 1, 0)


@pytest.mark.parametrize(
    ("silent_s", "welcomed", "pulse", "reason"),
    [
        (0.3, True, None, None),
        (0.95, True, None, "silent for 0.9 s"),
        (0.3, False, None, None),
        (5.1, False, None, "no answer"),
        (0.1, True, PULSE, None),
        (0.1, True, Pulse(9, 0.6, 0.02, 0, 1, 0, 1, 0), None),
        (0.1, True, Pulse(9, 0.8, 0.02, 0, 1, 0, 1, 0), "step 10 has not ended"),
        (0.1, True, Pulse(9, 3.0, 1.0, 0, 1, 0, 1, 0), None),  # a long prompt takes its time
        (0.1, True, Pulse(9, 5.1, 1.0, 0, 1, 0, 1, 0), "step 10 has not ended"),
    ],
)
def test_when_a_replica_is_left(silent_s, welcomed, pulse, reason):
    found = fault(silent_s, welcomed, pulse, stall_s=0.9)
    assert (found is None) if reason is None else reason in found


def test_an_ingress_that_slept_blames_nobody():
    with Serving(*engines(2)) as serving:
        serving.do(time.sleep, 1.5)
        time.sleep(0.3)
        assert [r.state for r in serving.service.fleet.replicas] == ["live", "live"]
