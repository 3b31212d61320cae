"""Stop strings in a text that comes in pieces: what could be the beginning of one is held back.

stop "END"      pieces "a E", "N", "T", "END b"      given "a ", "", "ENT", "" and stopped
"""

from __future__ import annotations

from collections.abc import Sequence


class StopText:
    """Watches one text."""

    def __init__(self, stops: Sequence[str], include: bool):
        """`include`: the stop string itself is given, too."""
        self._stops = tuple(stops)
        self._include = include
        self._held = ""
        self.found: str | None = None
        """The stop string that ended the text."""

    def push(self, text: str) -> str:
        """What of the text so far can be given; nothing more comes once a stop string is found."""
        if not self._stops:
            return text
        held = self._held + text
        places = [(held.find(stop), -len(stop), stop) for stop in self._stops if stop in held]
        if places:
            start, _, self.found = min(places)
            self._held = ""
            return held[: start + len(self.found)] if self._include else held[:start]
        keep = max(_overlap(held, stop) for stop in self._stops)
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep]

    def finish(self) -> str:
        """What was held back of a text that ended otherwise."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` with which `stop` begins."""
    start = text.find(stop[0], max(0, len(text) - len(stop) + 1))
    while start >= 0:
        if stop.startswith(text[start:]):
            return len(text) - start
        start = text.find(stop[0], start + 1)
    return 0
