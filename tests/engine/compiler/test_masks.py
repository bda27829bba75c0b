"""Masks that machine code draws are those that torch draws, and leave torch's generator as torch does."""

import platform
import threading
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loop import record
from torch import nn

from lightning_sink.engine.compiler import masks
from lightning_sink.engine.compiler.inductor import compile_inductor
from lightning_sink.engine.compiler.masks import RowDraws, draws_alike, probability_of_ones
from lightning_sink.engine.compiler.row import Turn
from lightning_sink.engine.compiler.toolchain import missing_compiler
from lightning_sink.engine.tracing.draws import Draw, hoist_draws

pytestmark = pytest.mark.skipif(missing_compiler() is not None, reason="no C++ compiler")

BERNOULLI = torch.ops.aten.bernoulli_.float


@pytest.fixture(scope="module")
def loop():
    """Machine code of a step that drops out."""
    return compile_inductor(record(lambda x: nn.functional.dropout(x, 0.3) * 2, torch.randn(2, 3))).loop


def mask(shape, probability, **options):
    fresh = torch.empty(shape, **options)
    return Draw(BERNOULLI, (probability,), {}, (tuple(fresh.shape), fresh.stride(), fresh.dtype, fresh.device))


def step_by_step(draws, steps):
    return list(zip(*draws.make(steps), strict=True))


def one_by_one(draws, steps, state):
    torch.set_rng_state(state)
    return [[draw() for draw in draws] for _ in range(steps)], torch.get_rng_state()


def assert_drawn_alike(draws, steps, loop):
    state = torch.get_rng_state()
    expected, left = one_by_one(draws, steps, state)
    torch.set_rng_state(state)
    found = step_by_step(RowDraws(draws, loop), steps)
    assert torch.equal(torch.get_rng_state(), left), "the generator"
    assert [len(step) for step in found] == [len(draws)] * steps
    for step, others in zip(found, expected, strict=True):
        for tensor, other in zip(step, others, strict=True):
            assert torch.equal(tensor, other)
            assert (tensor.dtype, tensor.stride()) == (other.dtype, other.stride())


def draws_of_its_own():
    """Intel's library has a `bernoulli_` of its own, which torch takes on Intel's processors."""
    cpus = Path("/proc/cpuinfo")
    return "Intel" in (cpus.read_text() if cpus.exists() else platform.processor())


@pytest.mark.skipif(draws_of_its_own(), reason="torch draws masks in another way on this processor")
def test_torchs_generator_is_what_machine_code_takes_it_for(loop):
    assert draws_alike(loop), "torch's generator, its state or `bernoulli_` has changed: masks are drawn one by one"


sizes = st.one_of(st.integers(1, 40), st.sampled_from([311, 312, 313, 624, 1023, 1024, 1025, 3000]))
probabilities = st.one_of(st.floats(0, 1), st.sampled_from([0.0, 1.0, 0.5, 2.0**-53, 1 - 2.0**-53, 1e-300]))


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    before=st.integers(0, 700),
    drawn=st.lists(st.tuples(sizes, probabilities), min_size=1, max_size=3),
    steps=st.integers(1, 5),
)
def test_masks_are_torchs(loop, seed, before, drawn, steps):
    torch.manual_seed(seed)
    torch.rand(before)  # a word each: what is left of the 624 may be odd
    assert_drawn_alike([mask(size, probability) for size, probability in drawn], steps, loop)


def test_a_generator_that_has_kept_a_normal_number_keeps_it(loop):
    torch.manual_seed(1)
    torch.randn(1)  # drawn in pairs
    assert_drawn_alike([mask((3, 5), 0.5)], 4, loop)
    kept = torch.get_rng_state()
    expected = torch.randn(3)
    torch.set_rng_state(kept)
    assert torch.equal(torch.randn(3), expected)


@pytest.mark.parametrize(
    "other",
    [
        Draw(torch.ops.aten.randn.default, ([3],)),
        mask((0, 3), 0.5),
        mask((2, 3, 4, 4), 0.5, dtype=torch.float64),
        mask((2, 3), 0.5, dtype=torch.bfloat16),
        Draw(BERNOULLI, (0.5,), {}, ((2, 3), (1, 2), torch.float32, torch.device("cpu"))),
        Draw(BERNOULLI, (), {}, ((2, 3), (3, 1), torch.float32, torch.device("cpu"))),
    ],
    ids=["normal", "nothing", "double", "bfloat16", "transposed", "by default"],
)
def test_draws_beside_others_keep_their_order(loop, other):
    torch.manual_seed(2)
    assert_drawn_alike([mask((4, 8), 0.9), other, mask(7, 0.2)], 3, loop)


def test_what_is_no_mask():
    assert probability_of_ones(mask((2, 3), 0.25)) == 0.25
    assert probability_of_ones(mask((2, 3), 0.25, dtype=torch.float64)) is None
    assert probability_of_ones(Draw(torch.ops.aten.rand.default, ([3],))) is None


def test_where_machine_code_draws_in_another_way_torch_draws(loop, monkeypatch):
    calls = []

    class Wrong:
        def draw_masks(self, state, masks, probabilities):
            calls.append(len(masks))
            for tensor in masks:
                tensor.zero_()

    assert not draws_alike(Wrong())
    assert len(calls) == 1
    torch.manual_seed(3)
    assert_drawn_alike([mask((4, 8), 0.9)], 3, Wrong())
    assert len(calls) == 2, "tried out, and not relied upon"


def test_numbers_that_another_thread_draws_meanwhile_are_not_drawn_again(loop):
    draws, other = RowDraws([mask((4, 8), 0.5)], loop), []

    class Late:
        def draw_masks(self, *arguments):
            loop.draw_masks(*arguments)
            thread = threading.Thread(target=lambda: other.append(torch.rand(3)))
            thread.start()
            thread.join()

    draws._loop = Late()
    torch.manual_seed(5)
    found = step_by_step(draws, 2)
    left = torch.get_rng_state()
    torch.manual_seed(5)
    assert torch.equal(other[0], torch.rand(3))
    expected, expected_left = one_by_one([mask((4, 8), 0.5)], 2, torch.get_rng_state())
    assert all(torch.equal(a, b) for (a,), (b,) in zip(found, expected, strict=True))
    assert torch.equal(left, expected_left)


@pytest.mark.skipif(draws_of_its_own(), reason="torch draws masks in another way on this processor")
def test_masks_are_the_hosts_whatever_the_default_device_is(loop):
    draws = RowDraws([mask((4, 8), 0.5)], loop)
    torch.manual_seed(6)
    expected, _ = one_by_one([mask((4, 8), 0.5)], 3, torch.get_rng_state())
    torch.manual_seed(6)
    with torch.device("meta"):
        assert draws_alike(loop)
        found = step_by_step(draws, 3)
    assert all(torch.equal(a, b) for (a,), (b,) in zip(found, expected, strict=True))


def test_a_state_that_is_too_short_is_not_read(loop, monkeypatch):
    monkeypatch.setattr(masks, "_BYTES", 1 << 20)
    assert not draws_alike(loop)


def test_draws_of_a_recorded_step_are_masks():
    def step(x):
        x = nn.functional.dropout2d(nn.functional.dropout(x, 0.3), 0.2)
        return nn.functional.alpha_dropout(x, 0.1, training=True)

    draws = hoist_draws(record(step, torch.randn(2, 3, 4, 4)).graph)
    assert [probability_of_ones(draw) for draw in draws] == [0.7, 0.8, 0.9]


def test_a_step_in_a_row_draws_what_single_ones_draw():
    """All the way: rows of a compiled step beside the same steps called one by one."""
    step = compile_inductor(
        record(lambda x: nn.functional.dropout(nn.functional.dropout(x, 0.3).sin(), 0.5), torch.randn(8, 9))
    )
    x = torch.randn(8, 9)
    torch.manual_seed(4)
    expected = [step(x)[0].clone() for _ in range(6)]
    left = torch.get_rng_state()
    torch.manual_seed(4)
    row = step.row([Turn(step, [x], [], [], [0])], 6)
    row.launch()
    found = row.wait()
    step.rest()
    assert found.done == 6
    assert torch.equal(found.kept[0], torch.stack(expected))
    assert torch.equal(torch.get_rng_state(), left)
    assert not torch.equal(expected[0], expected[1]), "the control: steps draw different masks"
