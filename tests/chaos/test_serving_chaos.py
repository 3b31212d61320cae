"""A service that is struck while it answers: every request is answered, with the text of one to which nothing happens."""

import os
import signal
import threading
import time
from pathlib import Path

import openai
import pytest
from disturbances import LATEST_S, Disturbance, restarts, terms
from dummies import eventually, runs
from evidence import Log, marked, new_mark, telling
from serving_job import Service, Streams, play
from training_chaos import stands_still

LOCAL = ("--runtime", "local")
REPLICAS = 2
PROMPTS = [f"request {i}: " + "xyz" * (i % 4) for i in range(12)]
TOKENS = 400
SOON = 0.1
"""Of all letters: engines are far ahead of a client that decodes many streams."""
TERMS = terms()
MOST_S = 600 + 240 * TERMS.minutes
GONE_S = 20.0
REPLACED_S = 60.0

pytestmark = pytest.mark.timeout(MOST_S)


class ServingChaos:
    """A service under strikes, each while it answers; the next one comes when all replicas are there again."""

    def __init__(self, path: Path, mark: dict[str, str]):
        self._path, self._mark = path, mark
        self.restarts = 0
        """Of all drivers so far."""
        self._service = Service(path, *LOCAL, environment=mark)
        self._service.until_live(REPLICAS)
        self.log = Log(self._service.folder / "events.jsonl")
        self._texts = self._play().texts

    def close(self) -> None:
        """Whatever happened."""
        with self._service:
            pass

    def strike(self, strike: Disturbance) -> None:
        """Once, among requests."""
        getattr(self, f"_{strike.what}")(strike)
        self._service.until_live(REPLICAS)

    def end(self) -> None:
        """Stop it in order."""
        self._service.driver.send_signal(signal.SIGTERM)
        assert self._service.end() == 0, self._service.said()
        final = self._service.result()
        assert (final["state"], self._service.ranks()) == ("drained", {})
        self.restarts += final["restarts"]

    def _play(self, at: int = -1, disturb: object = None) -> Streams:
        streams = play(self._service.url, PROMPTS, TOKENS, at, disturb)
        assert set(streams.finished) == {"length"} and {len(text) for text in streams.texts} == {TOKENS}
        return streams

    def _answers(self, strike: Disturbance, number: signal.Signals, victim: int) -> None:
        """All requests have their texts though a process gets a signal among them, or right before them."""
        at = int(SOON * len(PROMPTS) * TOKENS * strike.after_s / LATEST_S)
        assert self._play(at, lambda: os.kill(victim, number)).texts == self._texts

    def _victim(self, strike: Disturbance) -> int:
        found = {name: pid for name, pid in self._service.ranks().items() if name.startswith("replica-")}
        assert len(found) >= REPLICAS
        return strike.choose([pid for _, pid in sorted(found.items())])

    def _replaced(self, victim: int) -> None:
        """Until the service has noticed, for its ingress may still call the replica live."""
        assert eventually(lambda: not runs(victim) and victim not in self._service.ranks().values(), REPLACED_S), self._service.said()

    def _kill(self, strike: Disturbance) -> None:
        victim = self._victim(strike)
        self._answers(strike, signal.SIGKILL, victim)
        self._replaced(victim)

    def _stop(self, strike: Disturbance) -> None:
        victim = self._victim(strike)
        self._answers(strike, signal.SIGSTOP, victim)
        self._replaced(victim)

    def _pause(self, strike: Disturbance) -> None:
        """Too short or not: the replica may be left, and be replaced."""
        victim = self._victim(strike)

        def lasts() -> None:
            assert eventually(lambda: not runs(victim) or stands_still(victim), REPLACED_S)
            time.sleep(strike.lasts_s)
            if runs(victim):
                os.kill(victim, signal.SIGCONT)

        ending = threading.Thread(target=lasts)
        ending.start()
        self._answers(strike, signal.SIGSTOP, victim)
        ending.join()

    def _driver(self, strike: Disturbance) -> None:
        """Whoever's answer breaks asks again."""
        processes = list(self._service.ranks().values())
        at = int(SOON * len(PROMPTS) * TOKENS * strike.after_s / LATEST_S)
        before = self._service.status()["restarts"]
        try:
            self._play(at, self._service.driver.kill)
        except (openai.APIError, AssertionError, OSError):
            self._service.driver.wait(REPLACED_S)
        with self._service:
            assert self._service.driver.poll() == -signal.SIGKILL
        assert eventually(lambda: not any(map(runs, processes)), GONE_S), "ranks outlive their driver"
        self.restarts += before
        self._service = Service(self._path, *LOCAL, environment=self._mark)
        assert eventually(lambda: self._service.status().get("pid") == self._service.driver.pid, REPLACED_S), self._service.said()
        self._service.until_live(REPLICAS)
        assert self._play().texts == self._texts


def test_service_answers_every_request_whatever_strikes_it(tmp_path: Path) -> None:
    mark = new_mark()
    strikes = TERMS.script(("kill", "pause", "stop", "driver"), short=4, share=0.3)
    chaos = ServingChaos(tmp_path, mark)
    try:
        with telling(TERMS.seed, strikes, chaos.log):
            for strike in strikes:
                chaos.strike(strike)
            chaos.end()
            assert eventually(lambda: not marked(mark), GONE_S), marked(mark)
            _, most = restarts(strikes)
            assert most - sum(s.what == "pause" for s in strikes) <= chaos.restarts <= most
    finally:
        chaos.close()
