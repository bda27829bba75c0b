"""Steps that were gone through are put back one and all, or but for the first ones."""

from hypothesis import given
from hypothesis import strategies as st

from lightning_sink.engine.passages import Passages


class Counted:
    """Goes through steps by counting them."""

    def __init__(self):
        self.count, self.passages = 0, Passages()

    def go(self, steps):
        present = self.count
        for _ in self.passages.go(steps, lambda: self.put(present), lambda: self.put(self.count + 1)):
            pass

    def put(self, count):
        self.count = count

    def take_back(self, kept):
        self.go(self.passages.take_back(kept))


MOVES = st.lists(
    st.one_of(
        st.tuples(st.just("go"), st.integers(0, 5)),
        st.tuples(st.just("end"), st.just(0)),
        st.tuples(st.just("take back"), st.integers(0, 12)),
    )
)


@given(MOVES)
def test_against_a_list_of_lengths(moves):
    counted, ended, lengths = Counted(), 0, []
    for move, number in moves:
        if move == "go":
            counted.go(number)
            lengths += [number] if number else []
        elif move == "end":
            assert counted.passages.end() == bool(lengths)
            ended += lengths.pop(0) if lengths else 0
        else:
            counted.take_back(number)
            kept = []
            for length in lengths:
                kept += [min(length, number - sum(kept))] if number > sum(kept) else []
            lengths = kept
        assert counted.count == ended + sum(lengths)


def test_a_step_at_which_it_ends_was_not_gone_through():
    passages, ready, ended = Passages(), [], []
    passing = passages.go(5, lambda: None, lambda: ended.append(1), ready.append)
    for _ in range(3):
        next(passing)
    passing.close()
    assert passages.steps == len(ended) == sum(ready) == 2
    closed_at_once = passages.go(5, lambda: None, lambda: None)
    next(closed_at_once)
    closed_at_once.close()
    assert passages.end()
    assert not passages.end()
