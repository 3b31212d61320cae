"""What hosts hold decides what is used and who sends what; no file and no rank is needed for that."""

import pytest

from rayplane.errors import RayplaneError
from rayplane.train.holdings import Holding, Transfer, lead, needed_bytes, newest_whole, partner, transfers
from rayplane.train.room import check_room

FILES = ("r0", "r1", "r2", "r3")


def save(step, *files, mark="m"):
    return Holding(step, mark, FILES, files)


@pytest.mark.parametrize(
    ("hosts", "partners"),
    [
        ("aa", [None, None]),
        ("aabb", [2, 3, 0, 1]),
        ("abab", [1, 0, 3, 2]),
        ("aab", [2, 2, 0]),
        ("abc", [1, 2, 0]),
    ],
)
def test_a_partner_is_on_the_next_host_and_ranks_share_it_out(hosts, partners):
    assert [partner(hosts, rank) for rank in range(len(hosts))] == partners


def test_the_first_rank_of_a_host_acts_for_it():
    assert [lead("abab", rank) for rank in range(4)] == [0, 1, 0, 1]


def test_a_host_holds_its_own_files_and_its_neighbours():
    assert needed_bytes("aab", [10, 20, 5]) == {"a": 35, "b": 35}
    assert needed_bytes("aa", [10, 20]) == {"a": 30}


def test_the_newest_save_counts_whose_every_file_is_somewhere():
    old, cut_off = save(10, *FILES), save(15, "r0", "r1")
    assert newest_whole([[old, cut_off], [save(10, "r0"), save(15, "r2")]], least=1) == old
    assert newest_whole([[old, cut_off], [save(15, "r2", "r3")]], least=1).step == 15
    assert newest_whole([[old]], least=11) is None
    assert newest_whole([[], []], least=1) is None


def test_files_of_two_saves_of_one_step_make_no_whole():
    """The same step was saved again after a restart, while one host was away with what it had of the first time."""
    assert newest_whole([[save(15, "r0", "r1", mark="first")], [save(15, "r2", "r3", mark="second")]], least=1) is None


def test_each_host_gets_a_file_once_and_senders_take_turns():
    held = {"a": FILES, "b": ("r2",), "c": ()}
    wanted = [(), (), ("r2", "r3"), ("r3",), ("r2",)]
    assert transfers("aabbc", wanted, held) == (Transfer("r3", 0, 2), Transfer("r2", 1, 4))
    assert transfers("aabb", [FILES, (), (), ()], {"a": FILES, "b": ()}) == ()


def test_too_little_room_names_the_field_what_is_needed_and_what_is_there():
    check_room("/dev/shm", "aabb", [1_000_000] * 4, [8_000_000] * 4)
    with pytest.raises(RayplaneError) as error:
        check_room("/dev/shm", "aabb", [20_000_000] * 4, [900_000_000, 900_000_000, 64_000_000, 64_000_000])
    assert str(error.value).startswith(
        "train.checkpoint.memory_dir: /dev/shm on the host of ranks 2, 3 has room for 64 MB, and two copies there need 160 MB; enlarge"
    )
