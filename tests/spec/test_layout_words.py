"""A layout in words of a command line is the section of a job file, and its mistakes are told alike."""

import pytest

from rayplane.errors import SpecError
from rayplane.spec.job import LayoutSection
from rayplane.spec.layout_words import layout_of


@pytest.mark.parametrize(
    ("words", "section"),
    [
        ("tp=2 pp=2", LayoutSection(tp=2, pp=2)),
        ("pp=2 schedule=zb-h1 boundaries=5,3", LayoutSection(pp=2, schedule="zb-h1", boundaries=[5, 3])),
        ("pp=2 boundaries=[5,3]", LayoutSection(pp=2, boundaries=[5, 3])),
        ("tp=2 sp=true zero=1 micro_batch=4", LayoutSection(tp=2, sp=True, zero=1, micro_batch=4)),
    ],
)
def test_words_are_a_section(words, section):
    assert layout_of(words.split()) == section


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("tpp=2", "layout.tpp: unknown field, did you mean 'tp'?"),
        ("tp=two", "layout.tp: expected a whole number, got 'two'"),
        ("tp=0", "layout.tp: must be more than 0, got 0"),
        ("schedule=1f2b", "layout.schedule: expected '1f1b'"),
        ("tp=2 tp=4", "layout.tp: given twice; remove one"),
        ("tp", "tp: expected fields with values, such as tp=2 pp=2"),
        ("tp=", "tp=: expected fields with values, such as tp=2 pp=2"),
        ("tp={", "tp={: expected fields with values, such as tp=2 pp=2"),
        ("sp=true", "layout.sp: sequence parallelism cuts activations over tp, which is 1"),
        ("pp=2 schedule=interleaved", "layout.vpp: 1 chunk per stage is not interleaved"),
    ],
)
def test_mistakes_are_told_as_of_a_job_file(words, said):
    with pytest.raises(SpecError) as caught:
        layout_of(words.split())
    assert str(caught.value).startswith(said)
