"""docs/serving.md shows a batch that can be asked as it stands, with options that exist and an answer in the form that is written."""

import json
import re
from pathlib import Path

from typer.main import get_command

from rayplane.api.batch.answers import open_answers
from rayplane.api.batch.lines import Terms
from rayplane.api.batch.prompts import census, unanswered
from rayplane.cli.app import app

TEXT = (Path(__file__).parents[2] / "docs" / "serving.md").read_text(encoding="utf-8")
SECTION = re.search(r"^## A file of requests\n(.*?)^## ", TEXT, re.MULTILINE | re.DOTALL)[1]
PROMPTS, ANSWER = re.findall(r"^```json\n(.*?)^```$", SECTION, re.MULTILINE | re.DOTALL)


def test_the_shown_prompts_can_be_asked_and_the_shown_answer_is_how_they_are_written(tmp_path):
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "answers.jsonl"
    prompts.write_text(PROMPTS)
    terms = Terms("serve-smollm2", max_tokens=64, temperature=0)
    with open_answers(out, prompts) as answers:
        assert census(prompts, terms, answers.kept).requests == 3
        asks = list(unanswered(prompts, terms, answers.kept))
        assert [ask.custom_id for ask in asks] == ["rivers", "line-2", "sum"]
        answers.begin()
        answers.add(asks[2], 200, {}, "chatcmpl-1")
    written = json.loads(out.read_text())
    shown = json.loads(ANSWER.replace("{…}", "{}"))
    assert list(shown) == list(written) and list(shown["response"]) == list(written["response"])
    assert (shown["custom_id"], shown["error"], shown["response"]["status_code"]) == ("sum", None, 200)
    assert written["id"].startswith(shown["id"].rstrip("…"))


def test_the_options_of_batch_that_are_shown_exist_and_all_that_exist_are_shown():
    known = {flag for option in get_command(app).commands["batch"].params for flag in option.opts if flag.startswith("--")}
    shown = set(re.findall(r"--[a-z-]+", SECTION))
    assert shown <= known and known - shown == {"--out", "--runtime"}
