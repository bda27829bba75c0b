"""Truths of what a step has computed: a program that finds another one has changed nothing, and drawn nothing."""

import pytest
import torch
from loop import Training, both, record
from rows import repeat
from torch import nn

from lightning_sink.engine.compiler.inductor import compile_inductor, compile_traced
from lightning_sink.engine.compiler.toolchain import missing_compiler
from lightning_sink.engine.failures import AssumptionFailedError

COMPILERS = [
    compile_traced,
    pytest.param(compile_inductor, marks=pytest.mark.skipif(missing_compiler() is not None, reason="needs g++")),
]


class State:
    """Tensors that a step writes to, each in another way; of `total` the view that it writes to is one."""

    def __init__(self):
        self.total, self.count = torch.zeros(2, 6), torch.zeros((), dtype=torch.int64)
        self.seen, self.half = torch.zeros(6, dtype=torch.bool), torch.zeros(6, dtype=torch.bfloat16)
        self.laid = torch.zeros(3, 2).T

    @property
    def tensors(self):
        return [self.total, self.count, self.seen, self.half, self.laid]

    def step(self, row):
        """Writes before and behind the question whether the row's sum is below ten."""
        self.total[1].add_(row)
        self.count += 1
        noisy = nn.functional.dropout(row, 0.5) + torch.rand(6)
        loss = (self.total * noisy).sum()
        if row.sum() + 0 * loss > 10:
            return loss * 0
        self.seen |= row > 0
        self.half.mul_(0.5).add_(row)
        self.laid.copy_(noisy.view(2, 3))
        return loss


def rows():
    generator = torch.Generator().manual_seed(1)
    return [torch.rand(6, generator=generator) for _ in range(6)]


def recorded():
    torch.manual_seed(3)
    state = State()
    recording = record(state.step, rows()[0])
    assert not recording.hazards
    assert [assumed.outcome for assumed in recording.assumed] == [False]
    return state, recording


def eagerly(state, given):
    """What the steps leave, one after another."""
    torch.manual_seed(4)
    losses = [state.step(row) for row in given]
    return losses, [tensor.clone() for tensor in state.tensors], torch.get_rng_state()


@pytest.mark.narrow(11)
@pytest.mark.parametrize("compiler", COMPILERS)
def test_a_program_that_goes_another_way_has_changed_nothing(compiler):
    state, recording = recorded()
    step = compiler(recording)
    arguments = recording.inputs
    place = next(index for index, tensor in enumerate(arguments) if tensor.shape == (6,) and tensor is not state.seen)
    torch.manual_seed(4)
    before, generated = [tensor.clone() for tensor in state.tensors], torch.get_rng_state()
    for large in (torch.full((6,), 3.0), torch.full((6,), 1e9)):
        with pytest.raises(AssumptionFailedError):
            step(*[large if index == place else tensor for index, tensor in enumerate(arguments)])
        assert all(map(torch.equal, before, state.tensors))
        assert torch.equal(generated, torch.get_rng_state())
    (loss, *_) = step(*[rows()[1] if index == place else tensor for index, tensor in enumerate(arguments)])
    found = [tensor.clone() for tensor in state.tensors]
    for tensor, value in zip(state.tensors, before, strict=True):
        tensor.copy_(value)
    losses, left, generator = eagerly(state, [rows()[1]])
    torch.testing.assert_close([loss, *found], [losses[0], *left])
    assert torch.equal(generator, torch.get_rng_state())


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("at", [0, 1, 4, 5])
def test_a_row_ends_before_a_step_that_goes_another_way(at, compiler):
    state, recording = recorded()
    step = compiler(recording)
    place = next(i for i, tensor in enumerate(recording.inputs) if tensor.shape == (6,) and tensor is not state.seen)
    given = rows()
    torch.manual_seed(2)
    step(*recording.inputs)  # what it gives is known to lie in one piece, so that machine code runs rows
    before = [tensor.clone() for tensor in state.tensors]
    losses, left, generator = eagerly(state, given[:at])
    for tensor, value in zip(state.tensors, before, strict=True):
        tensor.copy_(value)
    given[at] = torch.full((6,), 3.0)
    torch.manual_seed(4)
    fixed = [None if index == place else tensor for index, tensor in enumerate(recording.inputs)]
    found = repeat(step, fixed, [place], [(row,) for row in given], [0])
    assert found.done == at
    assert type(found.error) is AssumptionFailedError
    torch.testing.assert_close(state.tensors, left)
    assert torch.equal(generator, torch.get_rng_state())
    if at:
        torch.testing.assert_close(found.kept[0], torch.stack(losses))


def test_a_truth_of_the_batch_alone_is_asked_before_the_step():
    recording = record(lambda x: x * 2 if x.sum() > 0 else x, torch.ones(3))
    assert not recording.assumed
    assert [question.value for question in recording.questions] == [True]


@pytest.mark.parametrize(
    "step",
    [
        lambda x, w: x * float((x * w).sum()),
        lambda x, w: x * int((x * w).sum()),
        lambda x, w: x if torch.equal(x, x * w) else x * 2,
    ],
    ids=["a float", "a whole number", "of whole tensors"],
)
def test_what_is_no_truth_is_a_reason_for_eager_steps(step):
    weight = torch.ones(3, requires_grad=True)
    recording = record(lambda x: step(x, weight), torch.ones(3))
    assert any("a value of a tensor" in hazard.what for hazard in recording.hazards)
    assert not recording.assumed


def doubling():
    """Trains on twice the loss of batches that are positive, as the step has it of what it computes."""
    module = nn.Linear(2, 1)

    def step(batch, batch_idx):
        loss = (module(batch) - 3).square().mean()
        return loss * 2 if (batch.sum() + 0 * loss) > 0 else loss

    return Training(module, torch.optim.SGD(module.parameters(), lr=0.001), step)


def test_a_program_is_let_go_of_where_most_steps_go_another_way():
    """Every other one: it is made anew once, and steps run the plain way then, which is said."""
    batches = [torch.full((4, 2), 1.0 if number % 2 else -1.0) for number in range(90)]

    _, sink = both(doubling, [batches, batches])
    assert "a value of a tensor decides" in sink.reasons
    assert 0 < sink.compiled < 90


def test_a_program_that_is_of_the_first_steps_only_makes_room():
    batches = [torch.full((4, 2), -1.0 if number < 10 else 1.0) for number in range(90)]

    _, sink = both(doubling, [batches])
    assert sink.reasons == ""
    assert sink.compiled > 50
