"""A batch from its census to its end: the service that answers, who asks it, what is written, and the exit code.

all answered          0
some refused, or given up    1, also where that was in an earlier run
stopped               130: the same command goes on
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from rayplane.api.batch.answers import Answers
from rayplane.api.batch.asker import Asker, Conditions, Ending
from rayplane.api.batch.client import Client
from rayplane.api.batch.lines import Terms
from rayplane.api.batch.prompts import census, unanswered
from rayplane.api.batch.tally import Tally
from rayplane.cli.batch_place import Place, near
from rayplane.cli.batch_progress import final_object, recorder, show_end
from rayplane.cli.batch_service import Company, Urls
from rayplane.cli.fleet import Options
from rayplane.cli.screen import say
from rayplane.cli.serving import serve
from rayplane.cli.signals import stop_on_signals
from rayplane.control.machine import INTERRUPTED
from rayplane.control.stop import Stop


@dataclass(frozen=True, slots=True)
class Order:
    """What was asked for."""

    prompts: Path
    out: Path
    place: Place
    terms: Terms
    conditions: Conditions


class Work:
    """One batch. SpecError for every mistake in the requests, before anything is asked."""

    def __init__(self, order: Order, answers: Answers, console: Console):
        self._order, self._answers, self._console = order, answers, console
        self._tally = Tally(census(order.prompts, order.terms, answers.kept))
        self._ending: Ending = "stopped"

    def run(self, options: Options) -> tuple[dict[str, Any], int]:
        """Ask; the final object and the exit code."""
        order, console, tally = self._order, self._console, self._tally
        if tally.census.foreign:
            say(console, f"note: {order.out} has {tally.census.foreign} answers to what is not in {order.prompts}; they stay")
        failure = ""
        try:
            if not tally.left:
                self._ending = "done"
            elif order.place.job:
                final, _ = serve(order.place.job, options, console, Company(self._ask_one_of, console))
                failure = str(final["message"]) if final["state"] == "failed" else ""
            else:
                stop = Stop()
                with stop_on_signals(stop):
                    asyncio.run(self._ask(order.place.url, stop))
        finally:
            show_end(console, tally, order.out)
        return self._end(failure)

    def _ask_one_of(self, urls: Urls, stop: Stop) -> None:
        """Ask the service that was started."""

        async def ask() -> None:
            await self._ask(await near(urls, self._order.place), stop)

        asyncio.run(ask())

    async def _ask(self, url: str, stop: Stop) -> None:
        order = self._order
        async with Client(url, order.place.key) as client:
            with recorder(self._answers, self._tally, self._console) as listener:
                self._answers.begin()
                self._tally.begin()
                asks = unanswered(order.prompts, order.terms, self._answers.kept)
                self._ending = await Asker(client, order.conditions, listener).run(asks, stop)

    def _end(self, failure: str) -> tuple[dict[str, Any], int]:
        tally = self._tally
        if self._ending == "done" or not tally.left:
            return final_object(tally, "done", ""), int(bool(tally.failed or tally.given_up or tally.census.failed_before))
        message = f"{tally.left} of {tally.census.requests} requests are left: the same command goes on from there"
        say(self._console, message)
        if failure:
            return final_object(tally, "failed", f"{failure}; {message}"), 1
        return final_object(tally, "stopped", message), INTERRUPTED
