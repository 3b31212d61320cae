"""The matrix of `nvidia-smi topo -m` as islands of NVLink and the nearest cards."""

import pytest
import topo_samples as samples

from rayplane.runtime.hardware.topo import Topo, parse

EIGHT = tuple(range(8))


@pytest.mark.parametrize(
    ("text", "islands", "nics"),
    [
        pytest.param(samples.h100(), (EIGHT,), {i: (f"mlx5_{i}",) for i in EIGHT}, id="8 x H100 with NVSwitch and a card each"),
        pytest.param(
            samples.A100_PAIRS,
            ((0, 1), (2, 3)),
            {0: ("mlx5_0",), 1: ("mlx5_0",), 2: ("mlx5_0",), 3: ("mlx5_0",)},
            id="4 x A100 PCIe in bridged pairs",
        ),
        pytest.param(samples.CROSSED_PAIRS, ((0, 2), (1, 3)), dict.fromkeys(range(4), ()), id="pairs that are not neighbours"),
        pytest.param(
            samples.GB200,
            ((0, 1, 2, 3),),
            {0: ("mlx5_0", "mlx5_1"), 1: ("mlx5_0", "mlx5_1"), 2: ("mlx5_4", "mlx5_5"), 3: ("mlx5_4", "mlx5_5")},
            id="a tray of an NVL72, two cards equally near",
        ),
        pytest.param(samples.L40S, ((0,), (1,)), {0: (), 1: ("bnxt_re0",)}, id="2 x L40S without NVLink"),
        pytest.param(samples.ONE, ((0,),), {0: ()}, id="one GPU"),
    ],
)
def test_a_matrix_is_read(text, islands, nics):
    assert parse(text) == Topo(islands, nics)


@pytest.mark.parametrize("text", [samples.ERROR, "", "\n\n", "GPU0", "No devices were found\n"])
def test_what_is_no_matrix_says_nothing(text):
    topo = parse(text)
    assert not topo.islands and not topo.nics


def test_links_join_those_that_are_joined_through_others():
    ring = "\tGPU0\tGPU1\tGPU2\tGPU3\nGPU0\tX\tSYS\tNV2\tSYS\nGPU1\tSYS\tX\tNV1\tSYS\nGPU2\tNV2\tNV1\tX\tSYS\nGPU3\tSYS\tSYS\tSYS\tX\n"
    assert parse(ring).islands == ((0, 1, 2), (3,))
