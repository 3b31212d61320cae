"""The catalog follows Prometheus' naming rules and documents itself."""

from rayplane.telemetry.catalog import CATALOG, markdown_table


def test_names_are_unique_and_prefixed() -> None:
    names = [m.name for m in CATALOG]
    assert len(set(names)) == len(names)
    assert all(n.startswith("rayplane_") for n in names)


def test_counters_and_only_they_end_in_total() -> None:
    assert all((m.type == "counter") == m.name.endswith("_total") for m in CATALOG)


def test_units_stand_in_names() -> None:
    for metric in CATALOG:
        if metric.unit in ("seconds", "bytes"):
            assert metric.unit in metric.name.split("_")


def test_no_label_is_one_that_prometheus_sets_itself() -> None:
    labels = {label for m in CATALOG for label in m.labels}
    assert not labels & {"job", "instance", "le", "quantile"}
    assert all(m.labels[0] == "run" for m in CATALOG)


def test_the_table_has_a_row_for_each_metric() -> None:
    rows = markdown_table().splitlines()
    assert [row.split("`")[1] for row in rows[2:]] == [m.name for m in CATALOG]
    assert {row.count("|") for row in rows} == {6}
