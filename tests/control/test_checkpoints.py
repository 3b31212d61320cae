"""Complete or absent."""

from rayplane.control.checkpoints import Checkpoint, newest
from rayplane.spec.manifest import complete, folder_name


def save(directory, step, manifest=True):
    folder = directory / folder_name(step)
    folder.mkdir(parents=True)
    if manifest:
        (folder / "manifest.json").write_text("{}")
    return str(folder)


def test_newest_is_the_highest_step_with_a_manifest(tmp_path):
    save(tmp_path, 5)
    path = save(tmp_path, 20)
    save(tmp_path, 30, manifest=False)
    assert newest(tmp_path) == Checkpoint(20, path)
    assert [p.name for p in complete(tmp_path)] == ["step-00000005", "step-00000020"]


def test_other_names_are_no_checkpoints(tmp_path):
    for name in ("step-5", "step-00000005.tmp", ".step-00000005", "step-0000000x"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "manifest.json").write_text("{}")
    assert newest(tmp_path) == Checkpoint()


def test_a_folder_that_is_not_there_holds_none(tmp_path):
    assert newest(tmp_path / "no") == Checkpoint()


def test_more_than_eight_digits_still_sort_by_step(tmp_path):
    save(tmp_path, 99_999_999)
    path = save(tmp_path, 100_000_000)
    assert newest(tmp_path) == Checkpoint(100_000_000, path)
