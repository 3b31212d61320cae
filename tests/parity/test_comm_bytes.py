"""The table of bytes in docs/parallelism.md: each row is measured, and the document quotes it as it is."""

from pathlib import Path

import pytest

from benchmarks.comm_bytes import markdown, measured_bytes, rows

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("row", rows(), ids=lambda row: f"{row.what}: {row.shape}")
def test_a_step_sends_the_bytes_of_the_closed_form(row, tmp_path):
    assert measured_bytes(row, tmp_path) == row.closed_form_bytes


def test_the_document_quotes_the_table():
    document = (ROOT / "docs" / "parallelism.md").read_text(encoding="utf-8")
    assert "\n".join(markdown()) in document, "run benchmarks/comm_bytes.py --markdown"
