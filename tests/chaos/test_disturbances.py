"""The script of a chaos run: the same for the same seed, every kind in it, nothing in it that cannot strike."""

from disturbances import LASTS_S, LATEST_S, Disturbance, Terms, restarts, script

KINDS = ("kill", "pause", "stop", "driver", "disk")
MANY = [script(seed, KINDS, 30) for seed in range(50)]


def test_a_seed_is_a_script():
    assert script(3, KINDS, 30) == MANY[3]
    assert len(set(MANY)) == len(MANY)


def test_every_kind_comes_and_never_less_than_once():
    for strikes in [*MANY, script(0, KINDS, 0)]:
        assert {s.what for s in strikes} == set(KINDS)
    assert [len(script(0, KINDS, count)) for count in (0, 5, 30)] == [5, 5, 30]


def test_only_kills_come_at_once_and_never_first():
    for strikes in MANY:
        assert strikes[0].after_s > 0
        assert {s.what for s in strikes if s.after_s == 0} <= {"kill"}
    assert any(s.after_s == 0 for strikes in MANY for s in strikes)


def test_times_are_within_their_bounds():
    for s in (s for strikes in MANY for s in strikes):
        low_s, high_s = LASTS_S.get(s.what, (0, 0))
        assert 0 <= s.after_s <= LATEST_S and low_s <= s.lasts_s <= high_s and 0 <= s.whom < 1


def test_everybody_is_chosen_and_nobody_else():
    chosen = {Disturbance(1, "kill", i / 100).choose([7, 8, 9]) for i in range(100)}
    assert chosen == {7, 8, 9} and Disturbance(1, "kill", 0.999).choose([7]) == 7


def test_restarts_are_those_of_replaced_ranks():
    strikes = (Disturbance(1, "kill", 0), Disturbance(0, "kill", 0), Disturbance(1, "pause", 0), Disturbance(1, "driver", 0))
    assert restarts(strikes) == (1, 3)
    assert restarts((Disturbance(1, "stop", 0), Disturbance(1, "actor", 0), Disturbance(1, "node", 0))) == (3, 3)


def test_minutes_make_the_script_longer():
    assert len(Terms(1, 0).script(KINDS, 6, 0.3)) == 6
    assert len(Terms(1, 10).script(KINDS, 6, 0.5)) == 33
