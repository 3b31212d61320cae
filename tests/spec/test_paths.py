"""A text that no file can have as its path is a mistake of its field, not a traceback."""

import pytest

from rayplane.spec.paths import path_fault


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("runs/x", ""),
        ("~", ""),
        ("", "is empty; name a file or folder"),
        ("a\0b", r"'a\x00b' cannot be a path"),
        ("a\ud800b", r"'a\ud800b' cannot be a path"),
        ("~nobody-has-this-name/x", "there is no home folder for ~nobody-has-this-name; write the whole path"),
        ("x" * 300, f"{'x' * 40}… is longer than a path can be"),
    ],
)
def test_what_is_no_path(text, fault):
    assert path_fault(text) == fault


def test_a_folder_that_may_not_be_entered_counts_on_this_machine_only(monkeypatch):
    def closed(_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.stat", closed)
    assert path_fault("/root/x") == "/root/x lies where you may not look: Permission denied"
    assert path_fault("/root/x", local=False) == ""
