"""Models by name have as many parameters as their publishers count."""

import pytest

from rayplane.spec.load import load_model
from rayplane.spec.model_section import ModelSection
from rayplane.spec.source import preset_names

PUBLISHED = {
    "smollm2-135m": 134_515_008,
    "llama2-7b": 6_738_415_616,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3-405b": 405_853_388_800,
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    "qwen2-7b": 7_615_616_512,
    "mistral-7b": 7_241_732_096,
    "gpt2": 124_439_808,
    "gpt3-175b": 174_600_000_000,
    "bloom-176b": 176_247_271_424,
}
OURS = {"tiny-llama", "reference"}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_preset_has_as_many_parameters_as_published(name: str) -> None:
    assert load_model(ModelSection(preset=name)).num_params == pytest.approx(PUBLISHED[name], rel=0.001)


def test_every_preset_is_one_of_these() -> None:
    assert set(preset_names()) == PUBLISHED.keys() | OURS
