"""Positions of generators: what steps draw, alone and in rows, is what the generator gives."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_sink.engine.state.ahead import in_row
from lightning_sink.engine.state.positions import Call, Stream

KINDS = {
    "random": (random, lambda: random.Random(1), ["random", "gauss", "expovariate"]),
    "numpy": (np.random, lambda: np.random.RandomState(1), ["rand", "standard_normal", "tomaxint"]),
}
ARGUMENTS = {"expovariate": (1.0,), "gauss": (0.0, 1.0)}


def stream_of(kind):
    module, make, _ = KINDS[kind]
    return Stream(module, make(), make()), make()


def step_through(stream, calls, drawn):
    """Does with a stream what a program's step does: asks some draws, in any order, then where they leave it."""
    drawn.extend(stream.draw(calls[: index + 1]) for index in range(len(calls)))
    if calls:
        stream.draw(calls[:1])
    stream.set(stream.behind(calls))


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_steps_alone_and_in_rows_draw_what_the_generator_gives(kind, data):
    """Rows may be cut, go on behind each other, or never count; somebody else may draw between them."""
    stream, plain = stream_of(kind)
    calls = st.lists(st.sampled_from(KINDS[kind][2]), max_size=3)
    makes = calls.map(lambda names: tuple(Call(name, ARGUMENTS.get(name, ()), ()) for name in names))
    follows, done = False, 0
    for _ in range(data.draw(st.integers(1, 6))):
        steps, drawn = data.draw(st.lists(makes, min_size=1, max_size=4)), []
        if data.draw(st.booleans()):
            if not follows and data.draw(st.booleans()):
                assert stream.generator.random() == plain.random()
            ends = []
            with in_row([stream], follows):
                for step in steps:
                    step_through(stream, step, drawn)
                    ends.append(stream.found())
            done = data.draw(st.integers(0, len(steps)))
            follows = done == len(steps) and data.draw(st.booleans())
            if not follows:
                drawn = drawn[: sum(map(len, steps[:done]))]
            assert drawn == [call.of(plain) for step in steps[: len(steps) if follows else done] for call in step]
            if done or follows:
                stream.set(ends[done - 1])
        else:
            for step in steps:
                stream.forget()
                step_through(stream, step, drawn)
            follows = False
            assert drawn == [call.of(plain) for step in steps for call in step]
    assert stream.generator.random() == plain.random()


def test_draws_that_are_asked_for_again_are_not_made_again():
    """What lies behind the row's beginning is not gone through for each step."""
    stream, _ = stream_of("random")
    calls = tuple(Call(name, (), ()) for name in ("random", "random"))
    made, random_ = [], stream._own

    class Counting(random.Random):
        def random(self):
            made.append(None)
            return super().random()

    stream._own = Counting()
    with in_row([stream], False):
        for _ in range(50):
            assert stream.draw(calls) != stream.draw(calls[:1])
            stream.set(stream.behind(calls))
    assert len(made) < 150
    stream._own = random_
