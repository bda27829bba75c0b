"""Compiled steps are compared with eager ones: a wrong compiler is found, rounding is not."""

import weakref
from contextlib import nullcontext

import pytest
import torch
from loop import Training, assert_same, batches, both, loss_of, mlp, train
from torch import nn, optim

from lightning_sink.engine.compiler.inductor import compile_traced
from lightning_sink.engine.compiler.loop import CompiledStep
from lightning_sink.engine.programs import verify
from lightning_sink.errors import VerificationError


def make(module=mlp, optimizer=lambda p: optim.SGD(p, 0.05, momentum=0.9)):
    def build():
        built = module()
        return Training(built, optimizer(built.parameters()), lambda batch, index: loss_of(built, batch))

    return build


def wrong(by, position):
    """A compiler whose functions give another output, or write something else."""

    def compiler(recording):
        right = compile_traced(recording)

        def function(*inputs):
            outputs = list(right(*inputs))
            if position == "loss":
                outputs[0] = outputs[0] * (1 + by)
            elif position == "gradient":
                outputs[-1] = outputs[-1] * (1 + by)
            elif position == "weight":
                next(tensor for tensor in inputs if tensor.shape == (8, 4)).mul_(1 + by)
            return tuple(outputs)

        return CompiledStep(function)

    return compiler


@pytest.mark.parametrize("position", ["loss", "gradient", "weight"])
def test_a_wrong_compiler_is_found_and_the_training_is_right(position):
    with pytest.raises(VerificationError, match="Compiled step 1") as caught:
        train(make(), [batches(8)], True, compiler=wrong(0.01, position))
    assert {"loss": "loss", "gradient": "gradient of", "weight": "weight"}[position] in str(caught.value)
    assert "allowed" in str(caught.value)


@pytest.mark.parametrize("position", ["loss", "gradient", "weight"])
def test_control_rounding_is_not_found(position):
    sink = train(make(), [batches(8)], True, compiler=wrong(1e-6, position))
    assert sink.compiled


@pytest.fixture
def rounded(monkeypatch):
    """Programs whose gradients may be less exact than types are."""
    monkeypatch.setattr(CompiledStep, "rounding", 1e-2)


@pytest.mark.parametrize(("by", "position"), [(1e-3, "gradient"), (0.1, "gradient"), (1e-3, "loss")])
def test_a_gradient_that_may_be_rounded_more_is_allowed_that_much(by, position, rounded):
    with nullcontext() if by < 1e-2 and position == "gradient" else pytest.raises(VerificationError):
        assert train(make(), [batches(8)], True, compiler=wrong(by, position)).compiled


@pytest.mark.parametrize(
    "optimizer",
    [lambda p: optim.SGD(p, 0.001), lambda p: optim.SGD(p, 0.01, momentum=0.9), lambda p: optim.AdamW(p, 3e-4)],
    ids=["SGD", "momentum", "AdamW"],
)
def test_a_program_that_leaves_weights_alone_is_found_however_gradients_are_rounded(optimizer, rounded):
    def compiler(recording):
        right = compile_traced(recording)
        return CompiledStep(lambda *inputs: right(*(t.clone() if tuple(t.shape) == (8, 4) else t for t in inputs)))

    with pytest.raises(VerificationError, match="weight"):
        train(make(optimizer=optimizer), [batches(8)], True, compiler=compiler)


def test_control_without_verification_a_wrong_compiler_is_not_found():
    plain = train(make(), [batches(8)], False)
    sink = train(make(), [batches(8)], True, compiler=wrong(0.01, "weight"), verify=0)
    with pytest.raises(AssertionError):
        assert_same(plain, sink)


def test_verified_steps_count_once():
    plain = train(make(), [batches(8)], False)
    assert_same(plain, train(make(), [batches(8)], True, verify=3))


def test_dropout_draws_once():
    def dropout():
        return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3))

    plain = train(make(dropout), [batches(8)], False)
    assert_same(plain, train(make(dropout), [batches(8)], True, verify=3))


def test_a_gradient_of_nothing_but_rounding_is_no_difference():
    def normalized():
        return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))

    sink = train(make(normalized, lambda p: optim.Adam(p, 0.01)), [batches(8)], True, verify=4)
    assert sink.compiled


def test_a_gradient_that_is_zero_by_mathematics_may_be_the_rounding_of_large_ones():
    """It says nothing of its own size."""
    weight = torch.tensor([[5.0, -3.0]])
    pairs = [
        verify._Pair("gradient of weight", weight, weight.clone(), 0),
        verify._Pair("gradient of bias", torch.tensor([4e-5]), torch.tensor([-6e-5]), 1, spread=1e-4),
    ]
    verify._check(pairs, 1e-6, 0.0, 0)
    pairs[1].spread = 1e-6
    with pytest.raises(VerificationError, match="gradient of bias"):
        verify._check(pairs, 1e-6, 0.0, 0)


class Cancelling(nn.Module):
    """What one of its parameters adds is taken away again, in another order: its gradient is zero but for rounding."""

    def __init__(self):
        super().__init__()
        self.net, self.scale = nn.Linear(4, 3), nn.Parameter(torch.rand(4))
        self.nothing = nn.Parameter(torch.rand(1, 4))

    def forward(self, x):
        added = (self.nothing * x * self.scale).sum()
        taken = (self.nothing * (x * self.scale).flip(0)).sum()
        return self.net(x * self.scale) * (1.0 + 30.0 * (added - taken))


def knowing(shape, known=True):
    """A compiler that leaves out gradients of a shape, and the operations of which it has."""

    def compiler(recording):
        right = compile_traced(recording)
        function = lambda *inputs: tuple(torch.zeros_like(o) if o.shape == shape else o for o in right(*inputs))  # noqa: E731
        step = CompiledStep(function)
        step.graph = right if known else None
        return step

    return compiler


def test_a_compiler_may_know_that_a_gradient_is_zero():
    sink = train(make(Cancelling, lambda p: optim.SGD(p, 1e-4)), [batches(8)], True, compiler=knowing((1, 4)))
    assert sink.compiled


@pytest.mark.parametrize(("shape", "known"), [((1, 4), False), ((3, 4), True)], ids=["rounding", "a real one"])
def test_control_a_gradient_that_is_left_out_is_found(shape, known):
    with pytest.raises(VerificationError, match="gradient of"):
        train(make(Cancelling, lambda p: optim.SGD(p, 1e-4)), [batches(8)], True, compiler=knowing(shape, known))


def test_a_parameter_whose_gradient_is_rounding_moves_as_far_as_either_step_moves_it():
    before = torch.full((4,), 0.1)
    pairs = [
        verify._Pair("gradient of bias", torch.tensor([1e-8] * 4), torch.tensor([-6e-7] * 4), 0),
        verify._Pair("bias", before + 0.001, before - 0.005, -1, before),
    ]
    verify._check(pairs, 1e-4, 0.0, 0)
    pairs[0] = verify._Pair("gradient of bias", torch.tensor([1e-8] * 4), torch.tensor([1e-8] * 4), 0)
    with pytest.raises(VerificationError, match="bias"):
        verify._check(pairs, 1e-4, 0.0, 0)


class AtTheEdge(nn.Module):
    """Gives a little more where a sum is above what it is: rounding decides."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 4))
        self.register_buffer("total", self.weight.detach().sum())

    def forward(self, x):
        return x @ self.weight.t() * (1 + 0.01 * (self.weight.sum() > self.total).float())


def rounds_otherwise(recording):
    right = compile_traced(recording)
    return CompiledStep(lambda *inputs: right(*(tensor.mul_(1 + 5e-7) for tensor in inputs[:1]), *inputs[1:]))


def test_what_rounding_decides_is_no_difference(monkeypatch):
    build = make(AtTheEdge, lambda p: optim.SGD(p, 0.0))
    assert train(build, [batches(8)], True, compiler=rounds_otherwise).compiled
    monkeypatch.setattr(verify, "_ROUNDINGS", ())
    with pytest.raises(VerificationError):
        train(build, [batches(8)], True, compiler=rounds_otherwise)


def test_a_program_that_goes_another_way_when_it_is_rounded_is_no_error():
    def build():
        module = AtTheEdge()

        def step(batch, index):
            if module.weight.sum() > module.total + 8e-6:
                raise ValueError("too large")
            return loss_of(module, batch)

        return Training(module, optim.SGD(module.parameters(), 0.0), step)

    assert train(build, [batches(8)], True, compiler=rounds_otherwise).compiled


def masked(built, batch):
    x, y = batch
    keep = (y == 1).float()
    return ((built(x)[:, 0] * keep) ** 2).sum() / (keep.sum() + 1)


@pytest.mark.parametrize("by", [1.05, 1.2])
def test_rounding_does_not_excuse_a_wrong_program_with_a_mask(by):
    def build():
        built = mlp()
        return Training(built, optim.SGD(built.parameters(), 0.1), lambda b, i: masked(built, (b[0], b[1].float())))

    def compiler(recording):
        right = compile_traced(recording)
        return CompiledStep(lambda *inputs: right(*(t * by if t.shape == (6, 4) else t for t in inputs)))

    with pytest.raises(VerificationError):
        train(build, [batches(8, size=6)], True, compiler=compiler)


def test_a_loss_that_is_not_finite_is_no_difference():
    def step(module):
        return lambda batch, index: loss_of(module, batch) * float("nan")

    def build():
        module = mlp()
        return Training(module, optim.SGD(module.parameters(), 0.1), step(module))

    assert train(build, [batches(8)], True).compiled


def test_the_state_after_a_failed_verification_is_that_of_the_eager_step():
    training = make()()
    plain = make()()
    plain.module.load_state_dict(training.module.state_dict())
    from loop import LoopSink, engine_for

    engine = engine_for(training, [], compiler=wrong(0.01, "loss"))
    with pytest.raises(VerificationError):
        engine.run(LoopSink(training, batches(8)))
    engine.close()
    for batch in batches(8)[: training.index]:
        plain.run(batch, 0)
    for expected, found in zip(plain.module.parameters(), training.module.parameters(), strict=True):
        assert torch.allclose(expected, found)


def test_where_there_is_no_memory_for_copies_steps_run_the_plain_way_and_it_is_said():
    copies, were_there = [], []

    def greedy(recording):
        def function(*inputs):
            copies.extend(map(weakref.ref, inputs))
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

        return CompiledStep(function)

    def build():
        training = make()()
        training.after = lambda done: were_there.append(any(copy() is not None for copy in copies))
        return training

    _, sink = both(build, [batches(8), batches(8)], compiler=greedy)
    assert not sink.compiled
    assert "no memory to run a compiled step on copies" in sink.reasons
    assert [hazard.way_out for hazard in sink.hazards] == ["have it not compared (`verify=0`)"]
    assert copies
    assert not any(were_there), "copies take memory while the step runs the plain way"


def test_where_there_is_no_memory_to_see_what_rounding_does_steps_run_the_plain_way(monkeypatch):
    def no_memory(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr(verify, "_see_spread", no_memory)
    _, sink = both(make(), [batches(8), batches(8)], compiler=wrong(0.01, "loss"))
    assert not sink.compiled
    assert "no memory" in sink.reasons


def test_a_default_device_of_the_users_is_none_of_its_business():
    right = torch.rand(3), torch.tensor([1, 2])
    pairs = [verify._Pair(f"value {i}", value, value.clone(), i, value.clone()) for i, value in enumerate(right)]
    with torch.device("meta"):
        verify._check(pairs, 1e-6, 0.0, 0)
        changed = verify._round_otherwise(right[0], torch.Generator("cpu").manual_seed(0), 4)
    assert changed.device.type == "cpu"
