"""Code that looks at a number in an optimizer's state takes plain Lightning's way at each step, in rows too."""

import itertools

import pytest
import torch

from lightning_sink import SinkStrategy
from lightning_sink.engine.compiler.toolchain import missing_compiler
from lightning_sink.engine.tracing import step_counts
from parity import Net, assert_parity, both, loader

missing = pytest.mark.skipif(missing_compiler() is not None, reason="no C++ compiler")
STEPS = 60


class Slows(torch.optim.Optimizer):
    """Keeps a count as torch's own do, and decides by it."""

    def __init__(self, params, slows, replaces=False, by=1, dtype=torch.float32):
        super().__init__(params, {"lr": 0.05})
        self.slows, self.replaces, self.by, self.dtype = slows, replaces, by, dtype

    @torch.no_grad()
    def step(self, closure=None):
        with torch.enable_grad():
            loss = closure()
        for group in self.param_groups:
            for parameter in (item for item in group["params"] if item.grad is not None):
                state = self.state[parameter]
                if not state:
                    state["step"] = torch.zeros((), dtype=self.dtype)
                if self.replaces:
                    state["step"] = state["step"] + self.by
                else:
                    state["step"] += self.by
                parameter.add_(parameter.grad, alpha=-group["lr"])
                if self.slows(state["step"].item()):
                    parameter.mul_(0.9)
        return loss


class Decays(Slows):
    """Decides by a number that it multiplies."""

    @torch.no_grad()
    def step(self, closure=None):
        loss = super().step(closure)
        for state in self.state.values():
            state.setdefault("room", torch.tensor(1.0)).mul_(0.9)
            if state["room"].item() < 0.02:
                self.param_groups[0]["params"][0].mul_(0.95)
        return loss


class Shares(torch.optim.Optimizer):
    """Keeps one count for all parameters, which it adds to once for each."""

    def __init__(self, params):
        super().__init__(params, {"lr": 0.05})

    @torch.no_grad()
    def step(self, closure=None):
        with torch.enable_grad():
            loss = closure()
        params = [item for group in self.param_groups for item in group["params"] if item.grad is not None]
        if not self.state:
            count = torch.tensor(0.0)
            for parameter in params:
                self.state[parameter]["step"] = count
        torch._foreach_add_([self.state[parameter]["step"] for parameter in params], 1)
        for parameter in params:
            parameter.add_(parameter.grad, alpha=-0.05)
            if self.state[parameter]["step"].item() % 7 < 2:
                parameter.mul_(0.9)
        return loss


class Chosen(Net):
    def __init__(self, choose):
        super().__init__()
        self.net[3] = torch.nn.Identity()
        self.choose = choose

    def configure_optimizers(self):
        return self.choose(self.parameters())


class AsksAdam(Chosen):
    def __init__(self):
        super().__init__(torch.optim.Adam)

    def on_before_optimizer_step(self, optimizer):
        state = optimizer.state.get(self.net[0].weight)
        if state and state["step"].item() >= 30:
            self.net[0].weight.grad.mul_(-1)


def once_past(count):
    return count > 30


def each_tenth(count):
    return count % 10 == 0


def now_and_then(count):
    return count % 2 >= 1


def slows(*arguments, **options):
    return lambda: Chosen(lambda params: Slows(params, *arguments, **options))


KINDS = {
    "RAdam, whose 16th step is the first that it rectifies": (
        lambda: Chosen(lambda params: torch.optim.RAdam(params, betas=(0.9, 0.67))),
        True,
    ),
    "a tenth each time": (slows(now_and_then, by=0.1), True),
    "a tenth each time, of half precision": (slows(now_and_then, by=0.1, dtype=torch.bfloat16), True),
    "whole numbers up to 255": (slows(once_past, by=3, dtype=torch.uint8), True),
    "one for all parameters": (lambda: Chosen(Shares), True),
    "RAdam": (lambda: Chosen(torch.optim.RAdam), True),
    "ASGD": (lambda: Chosen(lambda params: torch.optim.ASGD(params, lr=0.05, t0=20)), False),
    "NAdam": (lambda: Chosen(torch.optim.NAdam), True),
    "past a count": (slows(once_past), True),
    "each tenth": (slows(each_tenth), True),
    "a count that is replaced": (slows(once_past, replaces=True), False),
    "a number that decays": (lambda: Chosen(lambda params: Decays(params, once_past)), False),
    "Adam's, in a hook": (AsksAdam, True),
}


def trained(name, engine, **options):
    strategy = SinkStrategy(-1, epoch="dataset", engine=engine)
    return both(KINDS[name][0], lambda: loader(STEPS, last=8), strategy, max_epochs=2, **options)


@pytest.mark.narrow(13)
@pytest.mark.parametrize(
    ("name", "engine"),
    [
        *itertools.product(KINDS, ["traced"]),
        # Two programs each, and seconds to compile: one optimizer of torch's, and counts in tensors of another type.
        *(pytest.param(name, "inductor", marks=missing) for name in ("RAdam", "whole numbers up to 255")),
    ],
)
@pytest.mark.filterwarnings("ignore:The training step runs eagerly")
def test_decisions_by_counts_are_plain_lightnings(chunks, name, engine):
    plain, sink = trained(name, engine)
    assert_parity(plain, sink)
    assert bool(chunks) == KINDS[name][1]


@pytest.mark.narrow(7)
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.filterwarnings("ignore:The training step runs eagerly")
def test_windows_whose_optimizer_looks_at_its_counts(chunks, name):
    plain, sink = trained(name, "traced", accumulate_grad_batches=3)
    assert_parity(plain, sink)
    assert bool(chunks) == KINDS[name][1]


class CountsBatches(Chosen):
    """Each step of a window adds to one count, and decides by it."""

    def __init__(self):
        super().__init__(torch.optim.Adam)
        self.register_buffer("seen", torch.tensor(0))

    def training_step(self, batch, batch_idx):
        self.seen += 1
        loss = super().training_step(batch, batch_idx)
        return loss * 2 if self.seen.item() > 50 else loss


def test_a_count_that_all_steps_of_a_window_add_to():
    plain, sink = both(
        CountsBatches,
        lambda: loader(STEPS, last=8),
        SinkStrategy(-1, epoch="dataset", engine="traced"),
        max_epochs=2,
        accumulate_grad_batches=3,
    )
    assert_parity(plain, sink)


def test_control_counts_of_windows_as_they_lie_before_a_row_train_another_model(monkeypatch, unhurried):
    monkeypatch.setattr(step_counts.Count, "passed", lambda self: None)
    plain, sink = trained("past a count", "traced", accumulate_grad_batches=3)
    with pytest.raises(AssertionError):
        assert_parity(plain, sink)


def test_control_counts_as_they_lie_before_a_row_train_another_model(monkeypatch, unhurried):
    monkeypatch.setattr(step_counts.Count, "passed", lambda self: None)
    plain, sink = trained("past a count", "traced")
    with pytest.raises(AssertionError):
        assert_parity(plain, sink)
