"""Compiling recordings: one real compile, what is said about it, and a machine without a compiler."""

import pytest
import torch
from loop import Training, assert_same, batches, loss_of, record, train
from torch import nn, optim

from lightning_sink.engine.compiler.inductor import compile_inductor, compile_traced, timed
from lightning_sink.engine.compiler.toolchain import missing_compiler
from lightning_sink.engine.failures import RefusedError
from lightning_sink.engine.tracing.recording import Assumed

missing = pytest.mark.skipif(missing_compiler() is not None, reason="no C++ compiler")


def make():
    module = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5))
    return Training(module, optim.SGD(module.parameters(), 0.1, momentum=0.9), lambda b, i: loss_of(module, b))


@pytest.mark.narrow
@missing
def test_a_compiled_loop_is_the_same_with_the_same_draws():
    plain = train(make, [batches(7)], False)
    sink = train(make, [batches(7)], True, compiler=compile_inductor, costly=True)
    assert sink.compiled, sink.reasons
    assert_same(plain, sink)


def test_control_other_draws_are_another_training():
    runs = []
    for seed in (1, 2):

        def seeded(seed=seed):
            training = make()
            torch.manual_seed(seed)
            return training

        runs.append(train(seeded, [batches(7)], False))
    with pytest.raises(AssertionError):
        assert_same(*runs)


CONVOLUTIONS = {
    "plain": lambda: nn.Conv2d(4, 4, 3, padding=1),
    "grouped": lambda: nn.Conv2d(4, 4, 3, groups=2),
    "transposed": lambda: nn.ConvTranspose2d(4, 3, 2, stride=2),
    "channels last": lambda: nn.Conv2d(4, 6, 3, stride=2, bias=False),
}


@pytest.mark.narrow(13)
@missing
@pytest.mark.parametrize("kind", CONVOLUTIONS)
def test_convolutions_are_the_same_in_either_layout(kind):
    def image():
        layout = torch.channels_last if kind == "channels last" else torch.contiguous_format
        return torch.randn(2, 4, 6, 6).to(memory_format=layout)

    def make():
        module = nn.Sequential(CONVOLUTIONS[kind](), nn.ReLU(), nn.Flatten(), nn.LazyLinear(3))
        module(image())
        return Training(module, optim.SGD(module.parameters(), 0.1), lambda b, i: module(b).square().mean())

    torch.manual_seed(0)
    images = [image() for _ in range(6)]
    plain = train(make, [images], False)
    sink = train(make, [images], True, compiler=compile_inductor, costly=True)
    assert sink.compiled, sink.reasons
    assert_same(plain, sink)


@pytest.mark.narrow
@missing
@pytest.mark.parametrize("order", [2, 1, float("inf")])
def test_clipping_runs_in_rows_without_torch(order):
    compiled = []

    def kept(recording):
        compiled.append(compile_inductor(recording))
        return compiled[-1]

    def make():
        module = nn.Linear(4, 3)
        optimizer = optim.SGD(module.parameters(), 0.1)

        def clip(*_):
            nn.utils.clip_grad_norm_(module.parameters(), 0.1, norm_type=order)

        optimizer.register_step_pre_hook(clip)
        return Training(module, optimizer, lambda b, i: loss_of(module, b))

    plain = train(make, [batches(7)], False)
    sink = train(make, [batches(7)], True, compiler=kept, costly=True)
    assert_same(plain, sink)
    assert [step.overlaps for step in compiled] == [True]


VIEWS = {
    "columns": lambda table: (table[:, :4], table[:, 4]),
    "every second row": lambda table: (table[::2, :4].contiguous(), table[::2, 4]),
    "expanded": lambda table: (table[:1, :4].expand(6, 4), table[:, 4]),
}


@pytest.mark.narrow
@missing
@pytest.mark.parametrize("kind", VIEWS)
def test_batches_that_are_views_with_gaps_or_overlaps(kind):
    def make():
        module = nn.Linear(4, 1)
        module.register_buffer("weights", torch.rand(5, 2)[:, 1])

        def loss(batch, i):
            x, y = batch
            return (module.weights[:3].sum() * (module(x).squeeze(1) - y).square()).mean()

        return Training(module, optim.SGD(module.parameters(), 0.1), loss)

    torch.manual_seed(0)
    given = [VIEWS[kind](torch.randn(6, 5)) for _ in range(7)]
    plain = train(make, [given], False)
    sink = train(make, [given], True, compiler=compile_inductor, costly=True)
    assert sink.compiled, sink.reasons
    assert_same(plain, sink)


def test_the_time_of_a_compile_is_told():
    said = []
    assert timed(lambda recording: recording, said.append)("recording") == "recording"
    assert len(said) == 2
    assert said[1].endswith(" s")


def test_the_traced_form_is_the_graph_itself():
    sink = train(make, [batches(7)], True, compiler=compile_traced)
    assert sink.compiled


def test_a_draw_by_values_beside_a_value_that_decides_is_refused_with_its_line():
    """A program that finds that it goes another way has drawn by then."""
    recording = record(lambda x: torch.bernoulli(x), torch.rand(2, 3))
    recording.assumed.append(Assumed("a value decides", "train.py:3", True))
    with pytest.raises(RefusedError, match="draws by values of a tensor, and a value decides") as caught:
        compile_inductor(recording)
    assert caught.value.hazard.where.startswith(f"{__file__}:")
