"""A profile is a file that a person can read: it comes back as it was written, and mistakes in it are named by line and field."""

import pytest

from rayplane.errors import SpecError
from rayplane.spec.profile import (
    CollectiveTimes,
    Factor,
    Hardware,
    LayerTimes,
    MessageTimes,
    Observed,
    Profile,
    Versions,
    profile_text,
    read_profile,
)


@pytest.fixture
def profile() -> Profile:
    shape = {"hidden": 64, "heads": 2, "kv_heads": 1, "head_dim": 32, "mlp": 128, "samples": 1, "seq_len": 16}
    return Profile(
        date="2026-11-30T09:00:00Z",
        hardware=Hardware(device="cpu", name="AMD: a #1 core", nodes=1, devices=2),
        versions=Versions(rayplane="0.1.0", torch="2.13.0"),
        fixed_bytes=250_000_000,
        layers=(LayerTimes(precision="fp32", **shape, tp=2, forward_s=1.25e-3, backward_s=2.5e-3),),
        collectives=(CollectiveTimes(op="all_reduce", size=2, per_island=2, bytes=4096, seconds=1e-4),),
        messages=(MessageTimes(inside=True, bytes=4096, seconds=6.4e-5),),
        correction=(Factor(term="tp", value=1.5, spread=0.1),),
    )


def test_a_profile_comes_back_as_it_was_written(profile, tmp_path):
    path = tmp_path / "profile.yaml"
    path.write_text(profile_text(profile))
    assert read_profile(path) == profile


def test_a_measurement_is_a_line(profile):
    lines = profile_text(profile).splitlines()
    assert "- {op: all_reduce, size: 2, per_island: 2, bytes: 4096, seconds: 0.0001}" in lines
    assert "products:" not in lines


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("seconds: 0.0001", "seconds: soon", "collectives[0].seconds: input should be a valid number"),
        ("seconds: 0.0001", "seconds: -1", "collectives[0].seconds: input should be greater than 0"),
        ("seconds: 0.0001", "seconds: .nan", "collectives[0].seconds: input should be a finite number"),
        ("device: cpu, ", "", "hardware.device: is missing"),
        ("per_island", "per_rack", "collectives[0].per_rack: unknown field"),
        ("format: 2", "format: 3", "format: input should be 1 or 2"),
        ("term: tp", "term: luck", "correction[0].term: input should be"),
    ],
)
def test_mistakes_are_named_by_line_and_field(profile, tmp_path, old, new, message):
    text = profile_text(profile)
    assert text.count(old) == 1
    path = tmp_path / "profile.yaml"
    path.write_text(text.replace(old, new))
    line = next(i for i, content in enumerate(text.splitlines(), 1) if old in content)
    with pytest.raises(SpecError) as caught:
        read_profile(path)
    shown = [str(p) for p in caught.value.problems]
    assert any(s.startswith(f"{path}:{line}: {message}") for s in shown), shown


def test_no_profile_at_all_is_an_error(tmp_path):
    with pytest.raises(SpecError, match="no such file"):
        read_profile(tmp_path / "absent.yaml")
    (tmp_path / "list.yaml").write_text("- 1\n")
    with pytest.raises(SpecError, match="expected fields"):
        read_profile(tmp_path / "list.yaml")


def test_a_profile_of_the_first_format_is_read_as_ever(profile, tmp_path):
    path = tmp_path / "old.yaml"
    text = profile_text(profile).replace("format: 2", "format: 1").replace(", seen: 0", "")
    path.write_text(text)
    old = read_profile(path)
    assert (old.format, old.observed, old.correction[0].seen) == (1, None, 0)
    assert old.model_copy(update={"format": 2}) == profile


def test_what_was_observed_comes_back_as_it_was_written(profile, tmp_path):
    of = Observed(date="2026-12-01T09:00:00Z", run="small", model="reference", layout="dp2 mb2", windows=10)
    learned = profile.model_copy(update={"observed": of, "correction": (Factor(term="dp", value=3.0, spread=0.05, seen=2),)})
    path = tmp_path / "profile.yaml"
    path.write_text(profile_text(learned))
    assert read_profile(path) == learned
