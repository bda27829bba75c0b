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
        passage = self.passages.begin(lambda: setattr(self, "count", present))
        for _ in range(steps):
            passage.add()
            self.count += 1

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


def test_a_step_that_is_withdrawn_was_not_gone_through():
    passages = Passages()
    passage = passages.begin(lambda: None)
    passage.add()
    passage.withdraw()
    assert not passages.end()
