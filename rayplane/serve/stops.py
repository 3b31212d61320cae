"""Stop strings, found wherever they fall: text that may be the beginning of one is held back until it is known not to be.

stop = "\\n\\nUser"     deltas  "Hi"  "\\n"   "\\n"  "We"       "\\n\\nUs"  "er: x"
                       out     "Hi"  ""    ""   "\\n\\nWe"   ""        ""  and it has stopped

Each stop string is matched by Knuth, Morris and Pratt's automaton, a character at a time. The first to be complete ends the text, of
those complete at one character the longest; the text is cut before it, or behind it where it is to be included.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """The text of one sequence on its way through."""

    def __init__(self, stops: Sequence[str], include: bool = False):
        self.found: str | None = None
        """The stop string that ended the text."""
        self._stops = tuple(stops)
        self._include = include
        self._borders = [_borders(stop) for stop in self._stops]
        self._matched = [0] * len(self._stops)
        """Characters of each stop string that the text ends with."""
        self._held = ""

    def push(self, text: str) -> str:
        """What of the text so far can be given out; nothing more is to come once a stop string is found."""
        assert self.found is None
        if not self._stops:
            return text
        start = len(self._held)
        held = self._held + text
        for end in range(start + 1, len(held) + 1):
            self.found = self._step(held[end - 1])
            if self.found is not None:
                self._held = ""
                return held[: end if self._include else end - len(self.found)]
        cut = len(held) - max(self._matched)
        self._held = held[cut:]
        return held[:cut]

    def finish(self) -> str:
        """What was held back of a text that ended otherwise."""
        held, self._held = self._held, ""
        return held

    def _step(self, character: str) -> str | None:
        """One more character; the longest stop string that it completes."""
        found = None
        for i, (stop, borders) in enumerate(zip(self._stops, self._borders, strict=True)):
            matched = self._matched[i]
            while matched and stop[matched] != character:
                matched = borders[matched - 1]
            matched += stop[matched] == character
            self._matched[i] = matched
            if matched == len(stop) and (found is None or matched > len(found)):
                found = stop
        return found


def _borders(text: str) -> list[int]:
    """For each beginning of `text`, how much of it stands both at its start and, elsewhere, at its end."""
    borders, border = [0], 0
    for character in text[1:]:
        while border and text[border] != character:
            border = borders[border - 1]
        border += text[border] == character
        borders.append(border)
    return borders
