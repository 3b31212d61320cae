"""A run's log played again through the machine: from its events alone come the states and effects that its controller had.

log      Submitted, Placed, Started, RankExited, …   and the name of each state
machine  react(Pending, Submitted) ▶ Placing, Start      react(Placing, Placed) ▶ Starting      …      differs where the names do
"""

from __future__ import annotations

from dataclasses import dataclass

from rayplane.control.event_log import Line, Run
from rayplane.control.machine import react
from rayplane.control.state import Effect, Pending, State
from rayplane.control.status import state_name


@dataclass(frozen=True, slots=True)
class Turn:
    """What the machine makes of a line."""

    line: Line
    state: State
    effects: tuple[Effect, ...]

    @property
    def differs(self) -> bool:
        """Whether the log has another state."""
        return state_name(self.state) != self.line.state


def replayed(run: Run) -> tuple[Turn, ...]:
    """A turn for each line of a run."""
    state: State = Pending()
    turns = []
    for line in run.lines:
        state, effects = react(state, line.event, run.limits)
        turns.append(Turn(line, state, effects))
    return tuple(turns)
