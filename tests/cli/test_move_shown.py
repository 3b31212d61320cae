"""What a user sees of a service that is cut otherwise: in lines while it runs, and in `rayplane status`."""

import pytest

from rayplane.cli.load_line import in_words, tell_service
from rayplane.control.load import Load
from rayplane.control.lock import locked
from rayplane.control.service_record import _of
from rayplane.control.service_state import Back, LayoutWanted, Move, MoveEnded, Replica, ReplicaFailed, Service
from rayplane.control.service_status import ServiceStatus
from rayplane.control.status import write_status
from rayplane.control.way import Way
from rayplane.spec.layout import Layout

ONE, PIPE, CORES = Way(), Way(Layout(pp=2, boundaries=(2, 1))), Way(Layout(tp=2), cores=4)
BOTH = (Replica(0, "serving", "a0"), Replica(1, "starting", way=PIPE))
MOVING = Service(BOTH, wanted=1, started=2, ingress=True, way=PIPE, move=Move(Back(ONE, 1), 1))


def status(service):
    rest = dict.fromkeys(("requests_s", "output_tokens_s"), 0.0) | dict.fromkeys(("ttft_p99_s", "itl_p99_s"))
    rest |= dict.fromkeys(("running", "waiting", "restarts"), 0) | {"message": "", "pid": 1, "host": "here", "updated_unix_s": 0.0}
    moving = service.move is not None
    replicas = tuple(_of(service, Load()))
    return ServiceStatus("svc", "serving", (), "m", str(service.way), service.wanted, replicas, moving=moving, **rest)


@pytest.mark.parametrize(
    ("way", "words"), [(ONE, "1 device"), (PIPE, "pp2 2+1"), (CORES, "tp2 of 4 cores"), (Way(cores=4), "4 cores")], ids=str
)
def test_a_way_in_words(way, words):
    assert str(way) == words and way.devices == {"pp2 2+1": 2, "tp2 of 4 cores": 8, "4 cores": 4}.get(words, 1)


@pytest.mark.parametrize(
    ("service", "event", "line"),
    [
        (MOVING, LayoutWanted(PIPE, 2), "2 replicas of pp2 2+1 wanted; those that serve go on until their successors do"),
        (Service(way=PIPE), MoveEnded(PIPE), "moved to pp2 2+1"),
        (Service(way=ONE), MoveEnded(PIPE, "replica 1: it died"), "did not move to pp2 2+1: replica 1: it died; 1 device goes on"),
        (MOVING, ReplicaFailed(0, "it died"), "replica 0: it died"),
    ],
    ids=str,
)
def test_a_move_is_told(service, event, line):
    assert tell_service(service, event) == line


def test_a_line_of_the_load_and_the_status_show_a_move_and_each_replica_s_layout(cli, tmp_path):
    assert in_words(status(MOVING)).startswith("1/1 replicas, moves to pp2 2+1  0 running")
    folder = tmp_path / "runs/svc"
    folder.mkdir(parents=True)
    with locked(folder, "name"):
        write_status(folder, status(MOVING))
        shown = cli("status").stdout
    assert "serving, moves to pp2 2+1" in shown
    rows = [line.split() for line in shown.splitlines()]
    assert any(row[:3] == ["svc", "0", "serving"] and "device" in row for row in rows)
    assert any(row[:3] == ["svc", "1", "starting"] and "pp2" in row for row in rows)
