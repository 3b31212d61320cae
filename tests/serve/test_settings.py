"""What a job asks for reaches the scheduler."""

from pathlib import Path

import pytest

from rayplane.serve.rank import Serving
from rayplane.serve.settings import Settings
from rayplane.spec.job import ServeJob
from rayplane.spec.model import ModelSpec

SPEC = ModelSpec(2, 32, 4, 2, 8, 64, 256)
SERVING = Serving(Path("x"), "fp32", "auto", 16, 128, 512, 512)


@pytest.mark.parametrize(
    ("speculative", "expected"), [(None, (0, 1)), ({}, (4, 3)), ({"tokens": 8, "match": 5}, (8, 5)), ({"match": 1}, (4, 1))]
)
def test_guesses_are_made_as_the_job_says(speculative, expected):
    job = ServeJob.model_validate({"name": "a", "model": {"path": "x"}, "serve": {"speculative": speculative}, "layout": "auto"})
    limits = Settings(job, SPEC, SERVING, 256).limits(100, 1)
    assert (limits.num_drafts, limits.longest_match) == expected
