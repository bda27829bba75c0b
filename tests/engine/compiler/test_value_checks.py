"""What an operation refuses in eager code, it refuses in compiled code too."""

import pytest
import torch
from loop import record
from torch.distributions import Categorical, Normal, Uniform
from torch.nn import functional as F

from lightning_sink.engine.compiler.inductor import compile_inductor
from lightning_sink.engine.compiler.toolchain import missing_compiler

missing = pytest.mark.skipif(missing_compiler() is not None, reason="no C++ compiler")

HALF = torch.full((8, 4), 0.5)
ROWS = torch.arange(8)
CLASSES = ROWS % 4
DIVISORS = ROWS + 1
FLAGS = torch.tensor(True)
CHECKS = {"validate_args": True}  # `torch.compile` in the same process switches the default off


def zeros():
    return torch.zeros(8, 4)


def column(index):
    return index.view(8, 1)


# name: operation, what it is given, and wrong values for one element of that
OPERATIONS = {
    "bce, target": (lambda y: F.binary_cross_entropy(HALF * 0.5, y), HALF, [1.7, -0.1, float("nan")]),
    "bce, input": (lambda y: F.binary_cross_entropy(y, HALF * 0.5), HALF, [1.1, -2.0]),
    "bernoulli": (torch.bernoulli, HALF, [1.5, -0.5, float("nan")]),
    "assertion": (lambda y: torch._assert_async(y), FLAGS, [False]),
    "assertion, words": (lambda y: torch._assert_async(y, 'own "words" of 100 % (\\n é {x} //'), FLAGS, [False]),
    "cross_entropy": (lambda y: F.cross_entropy(zeros(), y), CLASSES, [4, -3]),
    "nll_loss, ignored": (lambda y: F.nll_loss(zeros(), y, ignore_index=-5), CLASSES, [4, -4]),
    "multi_margin_loss": (lambda y: F.multi_margin_loss(zeros(), y), CLASSES, [4, -1]),
    "multilabel_margin_loss": (lambda y: F.multilabel_margin_loss(zeros(), y), zeros().long(), [4, -2]),
    "embedding": (lambda y: F.embedding(y, zeros()), ROWS, [8, -1]),
    "gather": (lambda y: zeros().gather(1, column(y)), CLASSES, [4, -1]),
    "scatter": (lambda y: zeros().scatter(1, column(y), HALF), CLASSES, [4, -1]),
    "scatter, value": (lambda y: zeros().scatter(1, column(y), 1.0), CLASSES, [4, -1]),
    "scatter_, value": (lambda y: zeros().scatter_(-1, column(y), 1.0), CLASSES, [4, -1]),
    "scatter, multiply": (lambda y: (HALF + 1).scatter(1, column(y), 2.0, reduce="multiply"), CLASSES, [4, -1]),
    "scatter_add": (lambda y: zeros().scatter_add(1, column(y), HALF), CLASSES, [4, -1]),
    "scatter_reduce": (lambda y: zeros().scatter_reduce(1, column(y), HALF, "amax"), CLASSES, [4, -1]),
    "index_select": (lambda y: HALF.index_select(0, y), ROWS, [8, -1]),
    "index_select, int32": (lambda y: HALF.index_select(-1, y), CLASSES.int(), [4, -1]),
    "index_add": (lambda y: zeros().index_add(0, y, HALF), ROWS, [8, -1]),
    "index_add_": (lambda y: zeros().index_add_(0, y, HALF), ROWS, [8, -1]),
    "index_copy": (lambda y: zeros().index_copy(0, y, HALF), ROWS, [8, -1]),
    "index_copy_": (lambda y: zeros().index_copy_(0, y, HALF), ROWS, [8, -1]),
    "index_fill": (lambda y: zeros().index_fill(0, y, 1.0), ROWS, [8, -9]),
    "index": (lambda y: HALF[y], ROWS, [8, -9]),
    "index_put": (lambda y: zeros().index_put((y,), HALF, accumulate=True), ROWS, [8, -9]),
    "take": (lambda y: HALF.take(y), ROWS, [32, -33]),
    "put": (lambda y: zeros().put(y, HALF[:, 0]), ROWS, [32, -33]),
    "max_unpool": (lambda y: F.max_unpool2d(HALF.view(8, 1, 2, 2), y.view(8, 1, 2, 2), 2), ROWS.repeat(4), [16, -1]),
    "index, two": (lambda y: HALF[ROWS, y], CLASSES, [4, -5]),
    "index, the second": (lambda y: HALF[:, y], CLASSES, [4, -5]),
    "embedding, in part": (lambda y: F.embedding(y, zeros())[:2], ROWS, [8, -1]),
    "nll_loss of one row": (lambda y: F.nll_loss(zeros()[0], y[0].clamp(max=9) * 0 + y[-1]), CLASSES, [4, -1]),
    "nll_loss2d": (lambda y: F.nll_loss(zeros().view(2, 4, 2, 2), y.view(2, 2, 2)), CLASSES, [4, -1]),
    "divided": (lambda y: torch.div(7, y, rounding_mode="trunc"), DIVISORS, [0]),
    "divided, floor": (lambda y: 7 // y, DIVISORS, [0]),
    "divided, int8": (lambda y: torch.div(y * 2, y, rounding_mode="trunc"), DIVISORS.to(torch.int8), [0]),
    "divided in place": (lambda y: torch.full_like(y, 7).div_(y, rounding_mode="trunc"), DIVISORS.int(), [0]),
    "floor_divide_": (lambda y: torch.full_like(y, 7).floor_divide_(y), DIVISORS, [0]),
    "remainder": (lambda y: y.square() % y, DIVISORS, [0]),
    "remainder_": (lambda y: torch.full_like(y, 7).remainder_(y), DIVISORS, [0]),
    "remainder of a number": (lambda y: 7 % y, DIVISORS, [0]),
    "fmod": (lambda y: torch.fmod(y.square(), y), DIVISORS, [0]),
    "fmod_": (lambda y: torch.full_like(y, 7).fmod_(y), DIVISORS, [0]),
    "one_hot": (lambda y: F.one_hot(y, 4), CLASSES, [4, -1]),
    "one_hot, by name": (lambda y: F.one_hot(y.view(2, 4), num_classes=8), ROWS, [8, -1]),
    "Normal, scale": (lambda y: Normal(HALF, y, **CHECKS).log_prob(HALF), HALF, [0.0, -1.0, float("nan")]),
    "Categorical, logits": (lambda y: Categorical(logits=y, **CHECKS).entropy(), HALF, [float("nan")]),
    "Categorical, value": (lambda y: Categorical(HALF, **CHECKS).log_prob(y), CLASSES, [4, -1]),
    "Uniform, value": (lambda y: Uniform(0.0, 1.0, **CHECKS).log_prob(y), HALF, [1.5, -0.5]),
}
ACCEPTED = {
    "floats, floor": (lambda y: 7 // y, HALF, [0.0]),
    "floats, a number of integers": (lambda y: torch.div(y, 0.0, rounding_mode="trunc"), DIVISORS, [0]),
    "remainder of floats": (lambda y: y % 0.0, HALF, [0.0]),
    "index from the end": (lambda y: HALF[y], ROWS, [-8]),
    "masked": (lambda y: zeros().index_put((y > 3,), torch.tensor(1.0)), CLASSES, [7, -7]),
    "bce, bounds": (lambda y: F.binary_cross_entropy(HALF, y), HALF, [0.0, 1.0]),
}


def step(*given):
    """All operations, each of what it is given."""
    results = [operation(each) for (operation, *_), each in zip(EVERY.values(), given, strict=True)]
    return torch.stack([r.double().nan_to_num(posinf=1e3, neginf=-1e3).sum() for r in results if r is not None])


EVERY = {**OPERATIONS, **ACCEPTED}
MORE = ["several threads", "unused"]
GIVEN = [given.clone() for _, given, _ in EVERY.values()]


def wrong(name, value):
    """What the step is given, with another value for one element of one operation's."""
    changed = [given.clone() for given in GIVEN]
    changed[list(EVERY).index(name)].view(-1)[-1:] = value
    return changed


def run(function, *given):
    torch.manual_seed(5)
    try:
        return function(*given)
    except (RuntimeError, IndexError, ValueError) as error:
        return error


def looked_at(*given):
    """All operations, but nobody sees what they give."""
    for (operation, *_), each in zip(EVERY.values(), given, strict=True):
        operation(each)
    return given[0].sum()


@pytest.fixture(scope="module", params=["one thread", *(pytest.param(p, marks=pytest.mark.narrow) for p in MORE)])
def compiled(request, two_threads):
    """The step and what it stands for, compiled once for all of them."""
    original = looked_at if request.param == "unused" else step
    recording = record(original, *GIVEN)
    assert not recording.hazards
    recording.largest = 1 << 20 if request.param == "several threads" else 1
    function = compile_inductor(recording)
    places = [next((i for i, each in enumerate(GIVEN) if each is tensor), None) for tensor in recording.inputs]

    def compiled_step(*given):
        pairs = zip(places, recording.inputs, strict=True)
        return function(*(tensor.clone() if place is None else given[place] for place, tensor in pairs))[0]

    return compiled_step, original


@pytest.mark.narrow(5)
@missing
@pytest.mark.parametrize("name", EVERY)
def test_a_wrong_value_is_refused_by_compiled_code(compiled, name):
    compiled_step, original = compiled
    torch.testing.assert_close(run(compiled_step, *GIVEN), run(original, *GIVEN))
    for value in EVERY[name][2]:
        given = wrong(name, value)
        expected, found = run(original, *given), run(compiled_step, *given)
        assert isinstance(expected, Exception) == (name in OPERATIONS), "what torch refuses has changed"
        if name in ACCEPTED:
            torch.testing.assert_close(found, expected)
        else:
            assert isinstance(found, Exception), value
