"""What a rank gets of some samples, and which of their targets count."""

import numpy as np
import torch

from rayplane.model.loss import IGNORED
from rayplane.spec.layout import Layout
from rayplane.train.microbatch import Microbatch
from rayplane.train.threads import run_ranks

ROWS = np.array([[10, 11, 12, 13, 14, 15, 16, 17, 18], [20, 21, 22, 23, 24, 25, 26, 27, 28]])
STARTS = [np.array([0, 3, 5]), np.array([2, 8])]


def microbatches(cp, starts):
    return run_ranks(Layout(cp=cp), lambda mesh: Microbatch.of(ROWS, starts, mesh.cp, torch.device("cpu")))


def test_a_target_in_the_next_document_does_not_count():
    (whole,) = microbatches(1, STARTS)
    assert whole.ids.tolist() == ROWS[:, :-1].tolist()
    assert whole.targets.tolist() == [[11, 12, IGNORED, 14, IGNORED, 16, 17, 18], [21, IGNORED, 23, 24, 25, 26, 27, IGNORED]]
    assert (whole.seq, whole.counted, whole.documents) == (8, 12, ((0, 3, 5), (0, 2)))


def test_without_masks_every_target_counts():
    (whole,) = microbatches(1, None)
    assert (whole.targets.tolist(), whole.counted, whole.documents) == (ROWS[:, 1:].tolist(), 16, None)


def test_cp_ranks_share_ids_targets_and_their_count_by_zigzag():
    first, second = microbatches(2, STARTS)
    assert first.ids.tolist() == [[10, 11, 16, 17], [20, 21, 26, 27]]
    assert first.targets.tolist() == [[11, 12, 17, 18], [21, IGNORED, 27, IGNORED]]
    assert second.targets.tolist() == [[IGNORED, 14, IGNORED, 16], [23, 24, 25, 26]]
    assert (first.counted, second.counted) == (6, 6)
    assert first.documents == second.documents == ((0, 3, 5), (0, 2)), "of the whole samples: what is seen reaches over ranks"
