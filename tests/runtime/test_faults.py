"""What a rank's error means for its job."""

import errno

import pytest
import torch

from rayplane.errors import CheckpointError, DataError, NonFiniteError
from rayplane.rank.faults import kind_of


def too_much():
    """The error of torch's own allocator of host memory."""
    with pytest.raises(RuntimeError) as error:
        torch.empty(1 << 60, dtype=torch.uint8)
    return error.value


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (NonFiniteError("rank 0: loss of microbatch 1 is nan"), "nan"),
        (DataError("no such file"), "user"),
        (CheckpointError("no such file"), "user"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), "memory"),
        (RuntimeError("CUDA error: out of memory"), "memory"),
        (MemoryError(), "memory"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "memory"),
        (RuntimeError("Connection closed by peer"), "rank"),
        (ValueError("out of memory"), "rank"),
    ],
)
def test_kinds(error, kind):
    assert kind_of(error) == kind


def test_what_torch_says_when_the_host_has_too_little_memory():
    assert kind_of(too_much()) == "memory"
