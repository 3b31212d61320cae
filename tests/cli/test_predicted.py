"""What a step is expected to take is exported anew when a job goes on under another arrangement."""

from rayplane.cli.metrics import Metrics
from rayplane.control.checkpoints import NO_CHECKPOINT
from rayplane.control.event import GangDone, Placed, Planned, Submitted
from rayplane.control.state import Arrangement, Placing, Progress, Starting
from rayplane.spec.layout import Layout
from rayplane.spec.plan import Placement


class Exporter:
    def __init__(self):
        self.predicted, self.restarts = [], 0

    def set_state(self, name):
        pass

    def set_predicted(self, step_s):
        self.predicted.append(step_s)

    def saved(self):
        pass

    def restarted(self):
        self.restarts += 1


def test_every_new_prediction_is_told_once():
    exporter = Exporter()
    metrics = Metrics(exporter, 0.5)
    first, moved, shrunk = (Progress(arrangement=Arrangement(Layout(), Placement(()), step_s)) for step_s in (0.5, 0.4, 0.9))
    for state, event in (
        (Placing(first), Submitted(NO_CHECKPOINT, first.arrangement)),
        (Placing(moved), GangDone(3, True)),
        (Starting(moved), Placed()),
        (Placing(shrunk), Planned(shrunk.arrangement)),
    ):
        metrics.on_event(state, event)
    assert exporter.predicted == [0.5, 0.4, 0.9] and exporter.restarts == 1
