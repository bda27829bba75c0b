"""The faster way is found and kept; what is measured is given, no clock is asked."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_sink.data.pace import Pace

FETCH = 0.01


def run(pace, batches, in_step, ahead, fetch=FETCH):
    """Notes batches that take so long on each way; returns the way of each."""
    ways = []
    for _ in range(batches):
        ways.append(pace.ahead)
        pace.note(fetch, ahead if pace.ahead else in_step)
    return ways


def test_it_begins_in_step():
    assert not Pace().ahead


@given(in_step=st.floats(1e-4, 10.0), factor=st.floats(0.01, 0.99))
def test_the_faster_way_is_kept(in_step, factor):
    one, other = Pace(), Pace()
    run(one, 40, in_step, in_step * factor)
    run(other, 40, in_step * factor, in_step)
    assert one.ahead
    assert not other.ahead


def test_both_ways_are_tried_before_one_is_chosen():
    ways = run(Pace(), 40, 1.0, 2.0)
    assert set(ways) == {True, False}
    first = ways.index(True)
    assert first >= 10  # enough of them to compare
    assert 10 <= ways.count(True) <= 20
    assert not any(ways[-10:])


@given(fetch=st.floats(0.0, 99e-6))
def test_a_cheap_fetch_is_never_tried_ahead(fetch):
    assert not any(run(Pace(), 500, 1.0, 0.1, fetch))


def test_control_a_fetch_that_is_not_cheap_is_tried():
    assert any(run(Pace(), 500, 1.0, 0.1, 101e-6))


@given(place=st.integers(0, 25), size=st.floats(1.0, 1e4), in_step_wins=st.booleans())
def test_one_outlier_does_not_decide(place, size, in_step_wins):
    pace = Pace()
    in_step, ahead = (0.02, 0.03) if in_step_wins else (0.03, 0.02)
    for batch in range(26):
        pace.note(FETCH, size if batch == place else ahead if pace.ahead else in_step)
    assert pace.ahead is not in_step_wins


@given(place=st.integers(0, 12))
def test_one_slow_fetch_makes_no_cheap_one_dear(place):
    pace = Pace()
    for batch in range(30):
        pace.note(1.0 if batch == place else 1e-6, 1.0)
        assert not pace.ahead


def trials(ways):
    """Returns where the way that was kept was left, or tried again."""
    return [index for index in range(1, len(ways)) if ways[index] != ways[index - 1]]


@pytest.mark.parametrize("ahead_wins", [False, True])
def test_trials_become_rarer(ahead_wins):
    times = (1.0, 0.5) if ahead_wins else (0.5, 1.0)
    ways = run(Pace(), 6000, *times)
    kept = [index for index in trials(ways) if ways[index] is ahead_wins]
    gaps = [later - before for before, later in zip(kept, kept[1:], strict=False)]
    assert len(gaps) >= 3
    assert all(later > 2 * before for before, later in zip(gaps, gaps[1:], strict=False))
    assert ways.count(ahead_wins) > 0.95 * len(ways)


@pytest.mark.parametrize("ahead_first", [False, True])
def test_a_change_of_the_faster_way_is_found(ahead_first):
    pace = Pace()
    slow, fast = 1.0, 0.5
    run(pace, 60, *((slow, fast) if ahead_first else (fast, slow)))
    assert pace.ahead is ahead_first
    run(pace, 200, *((fast, slow) if ahead_first else (slow, fast)))
    assert pace.ahead is not ahead_first


def trials_among_skipped(fetch, whole=1.0, sinks=40, size=500, ahead_wins=False):
    """Counts the trials after the first, in sinks whose batches are fetched while steps run."""
    pace = Pace()
    run(pace, 40, whole, whole / 2 if ahead_wins else whole * 2, fetch)
    assert pace.settled
    found, stays = 0, pace.ahead
    for _ in range(sinks):
        left = size
        while left:
            if pace.settled:
                pace.skip(min(left, 16), min(left, 16) * fetch)
                left -= min(left, 16)
                if left:
                    continue
            before = pace.settled
            pace.note(fetch, whole / 2 if pace.ahead and ahead_wins else whole)
            found += before and not pace.settled
            left -= left > 0
    assert pace.ahead is stays
    return found


@given(fetch=st.floats(0.0, 99e-6))
def test_cheap_fetches_beside_steps_need_no_further_trial(fetch):
    assert trials_among_skipped(fetch) == 0


@pytest.mark.parametrize("ahead_wins", [False, True])
def test_control_those_that_are_not_cheap_and_those_ahead_are_tried_again(ahead_wins):
    assert trials_among_skipped(101e-6, ahead_wins=ahead_wins) >= 3


def test_fetches_beside_steps_that_become_dear_are_tried():
    pace = Pace()
    run(pace, 20, 1.0, 2.0, fetch=1e-6)
    pace.skip(40, 40e-6)
    assert pace.settled
    pace.skip(200, 200 * 1e-3)
    pace.note(1e-3, 1.0)
    assert not pace.settled


@given(rows=st.integers(1, 18), stays=st.integers(1, 4), part=st.floats(0.0, 0.6))
def test_a_loader_that_becomes_slow_is_tried_when_the_stay_ends(rows, stays, part):
    """A row is less than what is left of the shortest stay: what is fetched in one go is one time."""
    pace = Pace()
    run(pace, 13, 1.0, 2.0, fetch=1e-6)  # the first trial, behind which the stay begins
    lengths = [48 * 4**number for number in range(stays)]
    slow_from, last = sum(lengths[:-1]) + part * lengths[-1], sum(lengths) + stays * (rows + 1)
    for batch in range(0, last, rows + 1):
        if not pace.settled:
            return
        pace.skip(rows, rows * (1e-3 if batch >= slow_from else 1e-6))
        pace.note(1e-3 if batch >= slow_from else 1e-6, 1.0)
    assert not pace.settled


def test_slow_fetches_one_by_one_among_cheap_ones_beside_steps_are_tried():
    pace = Pace()
    run(pace, 20, 1.0, 2.0, fetch=1e-6)
    for _ in range(16):
        pace.skip(2, 2e-6)
        pace.note(0.01, 1.0)
    assert not pace.settled


@given(before=st.integers(0, 100))
def test_staying_in_step_is_final(before):
    pace = Pace()
    run(pace, before, 1.0, 0.1)
    pace.stay_in_step()
    assert not any(run(pace, 500, 1.0, 0.1))
    assert not pace.ahead


def test_memory_does_not_grow():
    pace = Pace()
    run(pace, 5000, 1.0, 0.5)
    assert all(len(value) <= 20 for value in vars(pace).values() if isinstance(value, list))


def noted(pace, batches, sending):
    """Notes batches that are sent in so long, and fetched in next to nothing; returns the way of each."""
    ways = []
    for _ in range(batches):
        ways.append(pace.ahead)
        pace.note(0.0, 1.0, 0.0) if pace.ahead else pace.note(sending, 1.0 + sending, sending)
    return ways


def test_what_it_takes_to_send_a_batch_counts_where_no_rows_are_seen():
    ways = noted(Pace(), 200, 1e-3)
    assert not any(ways[:60])  # rows are not known before something is compiled
    assert all(ways[-20:])


def test_what_it_takes_to_send_a_batch_counts_for_nothing_beside_rows():
    pace = Pace()
    ways = noted(pace, 20, 1e-3)
    for _ in range(50):
        pace.skip(256, 0.0)
        ways += noted(pace, 2, 1e-3)
    assert not any(ways)


def test_rows_that_come_no_more_are_noticed():
    pace = Pace()
    noted(pace, 20, 1e-3)
    pace.skip(256, 0.0)
    assert any(noted(pace, 2000, 1e-3))


def test_a_fetch_that_is_slow_beside_rows_is_tried_ahead_all_the_same():
    pace = Pace()
    for _ in range(200):
        pace.note(1.0 + 5.0, 7.0, 5.0)
        if pace.settled:
            pace.skip(2, 2.0)
        if pace.ahead:
            break
    assert pace.ahead
