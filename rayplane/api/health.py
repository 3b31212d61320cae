"""When a replica is to be left: it is silent, or a step of it does not end.

what is seen                                    limit
nothing came, not even a pulse                  stall_s
the oldest step is still in flight              STEP_SHARE x stall_s, or PATIENCE x what such a step should take, if that is longer
no Welcome came                                 WELCOME_S
"""

from __future__ import annotations

from rayplane.serve.wire import Pulse

STEP_SHARE = 0.75
"""A step's age is known a pulse later than silence is; both are to be noticed equally soon."""
PATIENCE = 5.0
WELCOME_S = 5.0


def fault(silent_s: float, welcomed: bool, pulse: Pulse | None, stall_s: float) -> str | None:
    """Why the replica is to be left; None when it is well. `pulse` is its newest."""
    if not welcomed:
        return f"it gave no answer for {silent_s:.1f} s" if silent_s > WELCOME_S else None
    if silent_s > stall_s:
        return f"it was silent for {silent_s:.1f} s"
    if pulse and pulse.oldest_s > max(STEP_SHARE * stall_s, PATIENCE * pulse.expected_s):
        return f"step {pulse.step + 1} has not ended for {pulse.oldest_s:.1f} s"
    return None
