"""Recordings that make no program: how many are made for one reason, and when one tries again."""

from lightning_sink.engine.programs.in_vain import InVain
from lightning_sink.engine.watch import Hazard

LASTS, LEARNED = Hazard("a shape", "net.py:3", lasts=True), Hazard("a number", "net.py:4")


def recorded(in_vain, reason, most=20):
    """Records steps until it is enough; returns how many."""
    for many in range(1, most):
        if in_vain.add(reason):
            in_vain.begin_wait()
            return many
    return most


def waited(in_vain):
    steps = 1
    while not in_vain.has_waited():
        steps += 1
    assert not in_vain.waits
    return steps


def test_what_lasts_is_enough_sooner_than_what_may_be_learned():
    assert recorded(InVain(), LASTS) == 3
    assert recorded(InVain(), LEARNED) == 5
    assert recorded(InVain(), None) == 20


def learned(in_vain, *reasons):
    for reason in reasons:
        in_vain.learned(reason)
        in_vain.spent(1.0, is_made=False)


def test_known_reasons_that_take_turns_take_a_share_of_the_time():
    in_vain = InVain()
    learned(in_vain, LASTS, LEARNED, LASTS, LEARNED, LASTS, LEARNED)
    assert not in_vain.is_dear
    learned(in_vain, LASTS)
    assert in_vain.is_dear
    assert in_vain.known == LASTS
    in_vain.ran_plainly(23.0)
    assert in_vain.is_dear
    in_vain.ran_plainly(2.0)
    assert not in_vain.is_dear
    learned(in_vain, LEARNED)
    assert in_vain.is_dear


def test_a_new_reason_a_change_and_a_program_are_worth_what_they_took():
    new = Hazard("another", "")
    for ends in (lambda it: it.learned(new), lambda it: it.spent(1.0, is_made=True), lambda it: it.changed()):
        in_vain = InVain()
        learned(in_vain, *(LASTS, LEARNED) * 4)
        assert in_vain.is_dear
        ends(in_vain)
        assert not in_vain.is_dear


def test_what_keeps_changing_is_worth_no_more():
    in_vain = InVain()
    for many in range(4):
        learned(in_vain, *(LASTS, LEARNED) * 4)
        assert in_vain.is_dear
        in_vain.changed()
        assert in_vain.is_dear == (many >= 2)


def test_the_same_reason_is_enough_at_once_behind_a_wait_and_waits_grow():
    for reason, again, first in ((LASTS, 1, 8), (LEARNED, 2, 64)):
        in_vain = InVain()
        recorded(in_vain, reason)
        assert in_vain.waits
        assert waited(in_vain) == first
        assert recorded(in_vain, reason) == again
        assert waited(in_vain) == 2 * first
        assert in_vain.reason == reason


def test_another_reason_and_none_begin_anew():
    for other in (LEARNED, None, Hazard(LASTS.what, "net.py:9", lasts=True)):
        in_vain = InVain()
        recorded(in_vain, LASTS)
        waited(in_vain)
        assert not in_vain.add(other)
        assert recorded(in_vain, LASTS) == 3


def test_a_change_ends_the_wait_and_what_lasts_is_not_counted_anew():
    for reason, in_all in ((LASTS, 3), (LEARNED, 2 + 5)):
        in_vain = InVain()
        assert not in_vain.add(reason)
        assert not in_vain.add(reason)
        in_vain.changed()
        assert 2 + recorded(in_vain, reason) == in_all
        assert in_vain.waits
        in_vain.changed()
        assert not in_vain.waits
        assert recorded(in_vain, reason) == (1 if reason is LASTS else 2)
