"""`rayplane catalog` lists what job files may name, and every name of it is one that a job may use."""

import json

import pytest
from typer.testing import CliRunner

from rayplane.cli.app import app
from rayplane.plan.machine.catalog import device

DEVICES = {
    # memory GB, bandwidth GB/s, dense bf16 TFLOP/s, NVLink or the like per direction GB/s, as the vendors publish them
    "a100-40gb": (40, 1555, 312, 300),
    "a100-80gb": (80, 2039, 312, 300),
    "h100-sxm": (80, 3350, 989, 450),
    "h100-pcie": (80, 2000, 756, 64),
    "h200": (141, 4800, 989, 450),
    "b200": (180, 7700, 2250, 900),
    "gb200": (186, 8000, 2500, 900),
    "l40s": (48, 864, 362, 32),
    "mi300x": (192, 5300, 1307, 448),
}


def listed():
    done = CliRunner().invoke(app, ["catalog", "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", DEVICES)
def test_a_device_has_the_figures_of_its_vendor(name):
    of = next(d for d in listed()["devices"] if d["name"] == name)
    memory, bandwidth, tflops, island = DEVICES[name]
    assert (of["memory_bytes"], of["hbm_gbytes_s"], of["links_gbytes_s"]["island"]) == (memory * 10**9, bandwidth, island)
    assert of["peak_flops"]["bf16"] == pytest.approx(tflops * 1e12)


def test_a_core_is_a_device_too():
    assert device("cpu").is_host
    assert "cpu" in {d["name"] for d in listed()["devices"]}


def test_people_see_models_and_devices_with_their_units():
    shown = CliRunner().invoke(app, ["catalog"]).stdout
    lines = {line.split()[0]: line.split() for line in shown.splitlines() if line.strip()}
    assert lines["llama3-8b"][1:4] == ["8.03", "B", "32"]
    assert lines["h100-sxm"][1:7] == ["80", "GB", "3350", "GB/s", "989", "TFLOP/s"]


def test_families_that_people_train_and_serve_are_there():
    names = {m["name"] for m in listed()["models"]}
    assert {"llama3-8b", "llama3-70b", "llama3-405b", "gpt3-175b", "bloom-176b"} <= names
    assert {f"qwen3-{size}" for size in ("0.6b", "1.7b", "4b", "8b", "14b", "32b")} <= names
