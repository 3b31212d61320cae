"""A gang over two hosts that are truly apart: network namespaces joined by a cable, a Ray node in each."""

import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from dummies import PYTHONPATH, descendants, eventually, runs

from rayplane.runtime.guardian import MARK, end, guarded

BIN = Path(sys.executable).parent
START_TIMEOUT_S = 90.0
PORT = 6379
"""Of the head; nobody else is in its namespace."""
HOSTS = {"left": "198.51.100.1", "right": "198.51.100.2"}

DRIVER = """
import json, sys
import ray
from dummies import collect, ranks_of
from rayplane.plan.choice.place import place
from rayplane.runtime.group import Launch
from rayplane.runtime.ray import RayGroup, Terms, connect, discover
from rayplane.spec.layout import Layout
connect(sys.argv[1])
cluster, layout = discover(), Layout(dp=2, tp=2)
group = RayGroup(terms=Terms(known=cluster.nodes))
group.start(Launch("apart", layout, place(layout, cluster), "meeting_rank", {"ranks": layout.size}))
came = collect(group, lambda seen: len(ranks_of(seen, "met")) == layout.size, 60.0)
sites = {rank: stage.site.address for stage in group._stages for rank in stage.slot.ranks}
group.close()
ray.shutdown()
met = {m.rank: (m.message["address"], m.message["others"]) for m in came if m.message["type"] == "met"}
print(json.dumps({"islands": len(cluster.islands), "sites": sites, "met": met}))
"""


def ip(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["ip", *words], capture_output=True, text=True, timeout=20)


@pytest.fixture
def namespaces() -> Iterator[dict[str, str]]:
    """The name of each host's namespace; they reach each other, and nothing else."""
    if shutil.which("ip") is None:
        pytest.skip("there is no `ip` command")
    names = {host: f"rayplane-{host}-{os.getpid()}" for host in HOSTS}
    cable = {host: f"rp{host[0]}{os.getpid()}" for host in HOSTS}
    with ExitStack() as closing:
        for name in names.values():
            if (made := ip("netns", "add", name)).returncode:
                pytest.skip(f"no network namespaces here: {made.stderr.strip()}")
            closing.callback(ip, "netns", "del", name)
        if (laid := ip("link", "add", cable["left"], "type", "veth", "peer", "name", cable["right"])).returncode:
            pytest.skip(f"no virtual network cables here: {laid.stderr.strip()}")
        for host, name in names.items():
            steps = (
                ("link", "set", cable[host], "netns", name),
                ("-n", name, "addr", "add", f"{HOSTS[host]}/24", "dev", cable[host]),
                ("-n", name, "link", "set", cable[host], "up"),
                ("-n", name, "link", "set", "lo", "up"),
            )
            assert not [step for step in steps if ip(*step).returncode]
        yield names


@pytest.fixture
def apart(namespaces: dict[str, str]) -> Iterator[tuple[list[str], dict[str, str]]]:
    """How to run something on the left host, and in which environment, while both are one cluster of two CPUs each."""
    folder = Path(tempfile.mkdtemp(prefix="two-"))
    token = folder / "token"
    token.touch(0o600)
    token.write_text(secrets.token_hex(32))
    environment = {**os.environ, "PYTHONPATH": PYTHONPATH, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
    environment.pop("RAY_ADDRESS", None)
    roles = {"left": ["--head", f"--port={PORT}", "--include-dashboard=false"], "right": [f"--address={HOSTS['left']}:{PORT}"]}
    started: list[subprocess.Popen[bytes]] = []
    mark = ""
    try:
        with guarded() as mark:
            for host, role in roles.items():
                start = [str(BIN / "ray"), "start", *role, "--block", "--disable-usage-stats", "--num-cpus=2"]
                start += [f"--node-ip-address={HOSTS[host]}", "--object-store-memory=80000000", f"--temp-dir={folder / host}"]
                with (folder / f"{host}.out").open("w") as out:
                    inside = ["ip", "netns", "exec", namespaces[host], *start]
                    marked = {**environment, MARK: mark}
                    started.append(subprocess.Popen(inside, stdout=out, stderr=subprocess.STDOUT, env=marked, start_new_session=True))
                said = folder / f"{host}.out"
                assert eventually(lambda said=said: "Ray runtime started" in said.read_text(), START_TIMEOUT_S), said.read_text()
        yield ["ip", "netns", "exec", namespaces["left"]], environment
    finally:
        family = [pid for process in started for pid in (*descendants(process.pid), process.pid)]
        end(mark)
        for process in started:
            process.wait(30)
        assert eventually(lambda: not any(map(runs, family)), 10.0)
        shutil.rmtree(folder)


def test_ranks_of_two_hosts_meet_over_the_cable_and_each_tp_group_stays_on_one(apart: tuple[list[str], dict[str, str]]) -> None:
    inside, environment = apart
    command = [*inside, sys.executable, "-c", DRIVER, f"{HOSTS['left']}:{PORT}"]
    result = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=150)
    assert result.returncode == 0, result.stdout + result.stderr
    told = json.loads(result.stdout.splitlines()[-1])
    sites = {int(rank): address for rank, address in told["sites"].items()}
    assert told["islands"] == 2
    assert sites[0] == sites[1] != sites[2] == sites[3]
    assert set(sites.values()) == set(HOSTS.values())
    met = {int(rank): (address, others) for rank, (address, others) in told["met"].items()}
    assert {rank: address for rank, (address, _) in met.items()} == sites
    assert met[0][1] == sorted(sites[rank] for rank in (1, 2, 3))
    assert all(met[rank][1] == [sites[0]] for rank in (1, 2, 3))
