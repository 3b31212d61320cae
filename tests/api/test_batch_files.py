"""The two files of a batch: what is asked, what is there already, and what is wrong with either."""

import json
import tracemalloc

import pytest

from rayplane.api.batch.answers import open_answers
from rayplane.api.batch.lines import Terms
from rayplane.api.batch.prompts import census, unanswered
from rayplane.errors import RayplaneError, SpecError

TERMS = Terms("m")


@pytest.fixture
def prompts(tmp_path):
    return tmp_path / "in.jsonl"


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out.jsonl"


def write(path, *lines):
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))


def answer(prompts, out, count, statuses=()):
    """Answer so many of what is left."""
    with open_answers(out, prompts) as answers:
        answers.begin()
        asks = unanswered(prompts, TERMS, answers.kept)
        for number, ask in zip(range(count), asks, strict=False):
            answers.add(ask, dict(statuses).get(number, 200), {"id": "cmpl-1", "text": "ü\n\ud800"}, "cmpl-1")


def left(prompts, out, terms=TERMS):
    with open_answers(out, prompts) as answers:
        found = census(prompts, terms, answers.kept)
        asks = [ask.custom_id for ask in unanswered(prompts, terms, answers.kept)]
    assert len(asks) == found.requests - found.skipped
    return asks


def wrong(prompts, out, terms=TERMS):
    with pytest.raises(SpecError) as caught, open_answers(out, prompts) as answers:
        census(prompts, terms, answers.kept)
    return str(caught.value).replace(f"{prompts.parent}/", "").splitlines()


def test_what_is_answered_is_not_asked_again(prompts, out):
    write(prompts, {"id": "a", "prompt": "x"}, "", {"prompt": "y"}, {"id": "c", "prompt": "z"})
    assert left(prompts, out) == ["a", "line-3", "c"]
    answer(prompts, out, 2, {1: 400}.items())
    assert left(prompts, out) == ["c"]
    with open_answers(out, prompts) as answers:
        found = census(prompts, TERMS, answers.kept)
    assert (found.requests, found.skipped, found.failed_before, found.foreign) == (3, 2, 1, 0)
    answer(prompts, out, 9)
    assert left(prompts, out) == []
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["custom_id"] for line in lines] == ["a", "line-3", "c"]
    assert [line["response"]["status_code"] for line in lines] == [200, 400, 200]
    assert lines[0] == {
        "id": lines[0]["id"],
        "custom_id": "a",
        "response": {"status_code": 200, "request_id": "cmpl-1", "body": {"id": "cmpl-1", "text": "ü\n\ud800"}},
        "error": None,
    }


def test_wherever_the_end_was_cut_off_that_answer_alone_is_asked_again(prompts, out):
    write(prompts, *({"prompt": f"{i}"} for i in range(3)))
    answer(prompts, out, 2)
    whole = out.read_bytes()
    first = whole.index(b"\n") + 1
    for end in range(first, len(whole)):
        out.write_bytes(whole[:end])
        assert left(prompts, out) == ["line-2", "line-3"]
        assert out.read_bytes() == whole[:end], "nothing is changed before something is asked"
    answer(prompts, out, 2)
    assert [json.loads(line)["custom_id"] for line in out.read_text().splitlines()] == ["line-1", "line-2", "line-3"]


def test_a_changed_request_is_named(prompts, out):
    write(prompts, {"id": "a", "prompt": "x"}, {"id": "b", "prompt": "y"})
    answer(prompts, out, 2)
    write(prompts, {"id": "a", "prompt": "x"}, {"id": "b", "prompt": "Y"})
    (line,) = wrong(prompts, out)
    assert line.startswith("in.jsonl:2: custom_id: 'b' was asked otherwise before") and "name another file with -o" in line
    write(prompts, {"id": "a", "prompt": "x"})
    assert len(wrong(prompts, out, Terms("m", temperature=0.5))) == 1
    assert left(prompts, out) == []


def test_answers_to_other_requests_are_counted_and_stay(prompts, out):
    write(prompts, {"id": "a", "prompt": "x"}, {"id": "b", "prompt": "y"})
    answer(prompts, out, 2)
    write(prompts, {"id": "b", "prompt": "y"}, {"id": "c", "prompt": "z"})
    with open_answers(out, prompts) as answers:
        assert census(prompts, TERMS, answers.kept).foreign == 1
    assert left(prompts, out) == ["c"]


def test_all_mistakes_are_found_and_ten_are_shown(prompts, out):
    write(prompts, *({"prompt": "x"} if i % 2 else {"prompt": "x", "temprature": 1} for i in range(28)), "{")
    lines = wrong(prompts, out)
    assert [line.split(": ")[0] for line in lines[:10]] == [f"in.jsonl:{i}" for i in range(1, 21, 2)]
    assert lines[0] == "in.jsonl:1: temprature: is no field of this request, did you mean 'temperature'?"
    assert lines[10:] == ["in.jsonl: 5 more lines are wrong"]


@pytest.mark.parametrize(
    ("second", "said"),
    [
        ({"id": "a", "prompt": "y"}, "in.jsonl:2: custom_id: 'a' stands on an earlier line too; give each line its own"),
        ({"id": "line-3", "prompt": "y"}, "in.jsonl:3: custom_id: 'line-3' stands on an earlier line too; give each line its own"),
    ],
)
def test_an_id_is_given_once(prompts, out, second, said):
    write(prompts, {"id": "a", "prompt": "x"}, second, {"prompt": "z"})
    assert wrong(prompts, out) == [said]


def test_files_that_are_none_are_refused(prompts, out, tmp_path):
    assert wrong(prompts, out) == ["in.jsonl: cannot be read: No such file or directory"]
    write(prompts, "", " ")
    assert "has no requests" in wrong(prompts, out)[0]
    write(prompts, {"prompt": "x"})
    assert "holds the prompts" in wrong(prompts, prompts)[0]
    assert "is no file to come back to" in wrong(prompts, tmp_path)[0]
    for foreign, line in (('{"a": 1}\n', 1), ("a note without an end", 1), ('{"id": "batch_req_1"}\n', 1), ("[" * 100_000 + "\n", 1)):
        out.write_text(foreign)
        assert wrong(prompts, out) == [f"out.jsonl:{line}: is no answer of a batch; name another file with -o"]
        assert out.read_text() == foreign
    with (
        pytest.raises(RayplaneError, match="cannot be written: No such file or directory"),
        open_answers(tmp_path / "no" / "o", prompts),
    ):
        pass


def test_one_batch_at_a_time_writes_to_a_file(prompts, out):
    write(prompts, {"prompt": "x"})
    with open_answers(out, prompts), pytest.raises(RayplaneError, match="another batch writes to it"), open_answers(out, prompts):
        pass
    assert left(prompts, out) == ["line-1"]


def test_a_large_file_is_not_held_in_memory(prompts, out):
    lines, long = 4000, "x" * 10_000
    write(prompts, *({"prompt": long} for _ in range(lines)))
    with open_answers(out, prompts) as answers:
        tracemalloc.start()
        assert census(prompts, TERMS, answers.kept).requests == lines
        assert sum(1 for _ in unanswered(prompts, TERMS, answers.kept)) == lines
        peak_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak_bytes < 400 * lines < prompts.stat().st_size / 20
