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
