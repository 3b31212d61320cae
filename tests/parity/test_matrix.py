"""Every valid combination of axes, schedule, ZeRO, recomputation, masks and model, drawn with a fixed seed: each equals one device.

`make parity` runs many more (PARITY_CASES).
"""

import itertools
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rayplane.spec.layout import Layout, unsupported

from .training import assert_equal, section, tiny, train

MAX_RANKS = 4
CASES = int(os.environ.get("PARITY_CASES", "30"))
SCHEDULES = {"1f1b": 1, "gpipe": 1, "interleaved": 2, "zb-h1": 1, "zb-h2": 1, "zbv": 2}
MODELS = {
    "9 heads on 3, tied": tiny(tied=True),
    "9 heads on 3": tiny(tied=False),
    "4 heads on 2": tiny(tied=False, heads=4, kv_heads=2),
    "4 heads on 4, tied, biases and qk norm": tiny(tied=True, heads=4, kv_heads=4, qkv_bias=True, qk_norm=True),
    "9 heads on 3, window": tiny(tied=False, window=4),
}


def degrees():
    """(dp, pp, cp, tp) of at most two each and four ranks in all."""
    return [d for d in itertools.product((1, 2), repeat=4) if d[0] * d[1] * d[2] * d[3] <= MAX_RANKS]


@st.composite
def layouts(draw):
    dp, pp, cp, tp = draw(st.sampled_from(degrees()))
    schedule = draw(st.sampled_from(sorted(SCHEDULES))) if pp > 1 else "1f1b"
    vpp = SCHEDULES[schedule]
    cuts = {1: [()], 2: [(), (3, 1), (0, 4), (4, 0)], 4: [(), (1, 2, 0, 1), (0, 2, 2, 0)]}[pp * vpp]
    zero = draw(st.sampled_from([0, 1, 2, 3]))
    recompute = draw(st.sampled_from(["none", "selective", "full"]))
    return Layout(
        dp=dp,
        pp=pp,
        cp=cp,
        tp=tp,
        sp=tp > 1 and draw(st.booleans()),
        vpp=vpp,
        schedule=schedule,
        micro_batch=draw(st.sampled_from([1, 2, 3, 8])),
        zero=zero,
        shard=draw(st.sampled_from([n for n in (0, 1, 2) if not n or dp * cp % n == 0])) if zero else 0,
        recompute=recompute,
        recompute_layers=draw(st.sampled_from([0, 1])) if recompute != "none" else 0,
        cp_method=draw(st.sampled_from(["ring", "gather"])),
        boundaries=draw(st.sampled_from(cuts)),
    )


@pytest.fixture(scope="module")
def serial(tmp_path_factory):
    """Each model on one device, without and with document masks."""
    jobs = {mask: section(tmp_path_factory.mktemp("serial"), document_mask=mask) for mask in (False, True)}
    return {(name, mask): train(spec, Layout(micro_batch=8), jobs[mask]) for name, spec in MODELS.items() for mask in jobs}


@pytest.mark.timeout(3600)
@settings(max_examples=CASES, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(layout=layouts(), model=st.sampled_from(sorted(MODELS)), document_mask=st.booleans())
def test_any_layout_equals_serial(layout, model, document_mask, serial, tmp_path_factory):
    assert not unsupported(layout)
    job = section(tmp_path_factory.mktemp("job"), document_mask=document_mask)
    assert_equal(train(MODELS[model], layout, job), serial[model, document_mask])
