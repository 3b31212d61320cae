"""What a run shows while it goes."""

import io

from fake_group import step
from rich.console import Console

from rayplane.cli.progress import progress
from rayplane.control.checkpoints import Checkpoint
from rayplane.control.event import KillDone, Saved, StopRequested
from rayplane.control.state import Draining, Placing, Progress, Running
from rayplane.runtime.group import step_report


def shown(terminal, steps, events=()):
    out = io.StringIO()
    with progress(Console(file=out, force_terminal=terminal, width=120), steps) as observer:
        for number in range(1, steps + 1):
            observer.on_step([step_report(message) for _, message in step(number)])
        for state, event in events:
            observer.on_event(state, event)
    return out.getvalue()


def test_a_file_gets_about_twenty_lines():
    lines = shown(False, 400).splitlines()
    assert len(lines) == 20
    assert lines[0] == "step  20/400  loss 0.0500  64 tokens/s  ETA 0:06:20"
    assert lines[-1].startswith("step 400/400")


def test_a_short_run_shows_every_step():
    assert len(shown(False, 3).splitlines()) == 3


def test_a_terminal_gets_a_bar_with_loss_and_pace():
    text = shown(True, 5)
    assert "5/5" in text
    assert "loss 0.2000  64 tokens/s  ETA" in text


def test_events_are_told_in_words():
    at = Progress(2, 3, Checkpoint(3, "runs/step-00000003"))
    events = [
        (Running(at), Saved(at.checkpoint)),
        (Placing(at), KillDone(at.checkpoint)),
        (Draining(at), StopRequested()),
    ]
    for terminal in (False, True):
        text = shown(terminal, 1, events)
        assert "saved step 3" in text
        assert "restarting from step 3 (attempt 2)" in text
        assert "saving after the current step" in text
