"""How often a job may restart, by what struck it.

| kind                                           | paid from  | what follows                                              |
|------------------------------------------------|------------|-----------------------------------------------------------|
| rank: crashed, killed, stopped, hung           | rank       | the same layout                                           |
| nan                                            | rank       | the same layout; at the same step once more: the end      |
| memory: a device had too little                | rank       | a layout that takes less, where the job leaves the choice |
| straggler: far slower than its peers           | rank       | another device, where one is spare                        |
| node: a machine or its Ray node is gone        | node       | the best layout for what is left                          |
| preemption: the machine was taken back         | preemption | the same                                                  |
| controller: the driver itself died             | controller | the next run goes on, or is refused (tenure.py)           |
| user: a mistake in the job                     | nothing    | the end: trying again would fail again                    |
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

from rayplane.spec.job import LimitsSection, RestartsSection

Kind = Literal["rank", "nan", "memory", "straggler", "node", "preemption", "user"]
Purse = Literal["rank", "node", "preemption"]
REPLANNED: tuple[Kind, ...] = ("memory", "straggler", "node", "preemption")
"""Kinds after which the devices, or what they can hold, are no longer what the plan took them for."""


@dataclass(frozen=True, slots=True)
class Spent:
    """Restarts so far."""

    rank: int = 0
    node: int = 0
    preemption: int = 0
    nan_step: int = -1
    """The step after which the last NaN came."""

    @property
    def total(self) -> int:
        """Of all kinds."""
        return self.rank + self.node + self.preemption


NOTHING_SPENT = Spent()


def kind_of(word: str) -> Kind:
    """The kind that a rank or its owner names; what nobody knows is a rank's own failure."""
    return next((kind for kind in get_args(Kind) if kind == word), "rank")


def purse(kind: Kind) -> Purse:
    """From which budget a failure is paid."""
    return "node" if kind == "node" else "preemption" if kind == "preemption" else "rank"


def allowed(limits: LimitsSection, kind: Kind) -> int:
    """Restarts that a job has for a kind of failure; a single number is the budget of each."""
    restarts = limits.restarts
    return int(getattr(restarts, purse(kind))) if isinstance(restarts, RestartsSection) else restarts


def pay(spent: Spent, limits: LimitsSection, kind: Kind, step: int) -> Spent | str:
    """The budget after one more restart, or why there is none."""
    name, budget = purse(kind), allowed(limits, kind)
    used = getattr(spent, name)
    if kind == "nan" and step == spent.nan_step:
        return f"it came a second time after step {step}"
    if used >= budget:
        field = f"limits.restarts.{name}" if isinstance(limits.restarts, RestartsSection) else "limits.restarts"
        return f"{field} ({budget}) is spent" if budget else f"{field} is 0"
    paid = replace(spent, **{name: used + 1})
    return replace(paid, nan_step=step) if kind == "nan" else paid
