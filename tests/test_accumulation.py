"""The steps of accumulation windows are run many in one call, and nothing of it shows."""

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import GradientAccumulationScheduler, LearningRateMonitor, ModelCheckpoint
from torch import nn

from lightning_sink import SinkStrategy
from lightning_sink.engine.compiler.toolchain import missing_compiler
from parity import Net, assert_parity, compare, loader, once
from test_steps_in_a_row import InMemory, assert_left_the_same, failed

missing = pytest.mark.skipif(missing_compiler() is not None, reason="no C++ compiler")


def many():
    return loader(61)


class Quiet(Net):
    """Draws nothing."""

    def __init__(self, **options):
        super().__init__(**options)
        self.net[3] = nn.Identity()


@pytest.mark.narrow(11)
@pytest.mark.parametrize(
    ("make", "optimizer", "count"),
    [(Quiet, "sgd", 2), (Quiet, "adam", 3), (Quiet, "foreach", 7), (Net, "adam", 2), (Net, "sgd", 7)],
)
def test_training_is_plain_lightnings(rows, make, optimizer, count):
    plain, sink = compare(
        lambda: make(optimizer=optimizer), "traced", -1, data=many, accumulate_grad_batches=count, max_epochs=3
    )
    assert plain.generators == sink.generators
    assert sum(steps for steps, _ in rows) > 90
    assert {turns for _, turns in rows} == {count}


@pytest.mark.narrow(11)
@pytest.mark.parametrize(
    ("schedule", "every"), [("onecycle", 1), ("onecycle", 5), ("step", 2), ("step", 50), ("plateau", 1), ("plateau", 5)]
)
def test_schedules_and_rows_are_plain_lightnings(rows, schedule, every):
    options = {"accumulate_grad_batches": 4, "log_every_n_steps": every, "gradient_clip_val": 0.5, "max_epochs": 3}
    compare(lambda: Quiet(schedule=schedule, total_steps=100), "traced", 40, data=many, **options)
    assert sum(steps for steps, _ in rows) > 60


@pytest.mark.narrow
@missing
def test_machine_code_runs_them(rows):
    options = {"accumulate_grad_batches": 4, "max_epochs": 3}
    plain, sink = compare(lambda: Net(schedule="onecycle", total_steps=100), "inductor", -1, data=many, **options)
    assert plain.generators == sink.generators
    assert sum(steps for steps, _ in rows) > 90


@pytest.mark.narrow(11)
@pytest.mark.parametrize(
    ("make", "engine"),
    [(Quiet, "traced"), pytest.param(Net, "inductor", marks=missing)],
    ids=["traced", "inductor, draws"],
)
@pytest.mark.parametrize("at", [132, 134, 135])
def test_a_step_that_fails_in_a_window(rows, make, engine, at):
    """Those before it in its window have been trained, as in plain Lightning, and are not trained again."""
    batches = [(x, y.clone()) for x, y in loader(160, last=8)]
    batches[at][1][3] = 99
    data = InMemory(batches)
    plain, sink = failed(make, lambda: data, IndexError, engine, accumulate_grad_batches=4)
    assert rows
    # Whether running statistics are updated before the error is an order of operations.
    names = [name for name in plain[0] if "running" not in name and "tracked" not in name]
    assert_left_the_same(*(({name: left[0][name] for name in names}, *left[1:]) for left in (plain, sink)))
    assert f"in a compiled step, of batch {at} of epoch 0" in sink[3]
    assert torch.equal(sink[4], plain[4]), "the random generator"


def test_gradients_of_an_unfinished_window_are_there(rows):
    """Of 61 batches the last is alone in its window; an epoch that ends in the middle of one leaves its gradients."""
    options = {"accumulate_grad_batches": 4, "max_epochs": 2, "limit_train_batches": 42}
    plain, sink = compare(Quiet, "traced", -1, data=many, **options)
    assert sum(steps for steps, _ in rows) > 40
    assert any(name.startswith("gradient") for name in plain.tensors)


def test_windows_that_change_from_epoch_to_epoch(rows):
    callbacks = lambda: [GradientAccumulationScheduler({0: 3, 1: 1, 2: 5})]  # noqa: E731
    runs = [
        once(Quiet, many, strategy, max_epochs=4, callbacks=callbacks)
        for strategy in ("auto", SinkStrategy(30, epoch="dataset", engine="traced"))
    ]
    assert_parity(*runs)
    assert {turns for _, turns in rows} == {3, 5}


def test_callbacks_that_watch_steps(rows, tmp_path):
    files = []
    for strategy in ("auto", SinkStrategy(-1, epoch="dataset", engine="traced")):
        folder = tmp_path / str(len(files))
        checkpoints = ModelCheckpoint(folder, filename="{step}", every_n_train_steps=5, save_top_k=-1)
        run = once(
            lambda: Quiet(schedule="onecycle", total_steps=100), many, strategy, max_epochs=2, log_every_n_steps=2,
            accumulate_grad_batches=4, enable_checkpointing=True,
            callbacks=lambda made=checkpoints: [made, LearningRateMonitor("step")],
        )  # fmt: skip
        files.append((sorted(path.name for path in folder.iterdir()), run))
    (expected, plain), (found, sink) = files
    assert found == expected
    assert len(found) > 4
    assert_parity(plain, sink)


class CountsByHand(Quiet):
    """The steps of a window differ by what they collect: they run one call each."""

    def __init__(self):
        super().__init__()
        self.losses = []

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.losses.append(loss.detach())
        return loss


class LogsAtEnds(Quiet):
    """Logs another name in the last step of each window."""

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        if (batch_idx + 1) % 4 == 0:
            self.log("at the end", loss)
        return loss


class Reads(Quiet):
    """A step that computes with the gradients of the one before."""

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        gradient = self.net[0].weight.grad
        return loss if gradient is None else loss + 1e-3 * gradient.square().mean() * self.net[0].weight.sum()


class Dampens(Quiet):
    """Scales the loss by where in the window a step is."""

    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) * (1.0 + batch_idx % 4)


class Counted(Quiet):
    """Computes with the batch's index and the steps so far."""

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        return loss * (1.0 + 0.01 * batch_idx + 0.1 * self.global_step)


class Clears(Quiet):
    """Clears its gradients itself, at the end of a window."""

    def on_train_batch_end(self, outputs, batch, batch_idx):
        if (batch_idx + 1) % 4 == 0:
            self.zero_grad()


class Keeps(Quiet):
    """Clears gradients by zeros."""

    def optimizer_zero_grad(self, epoch, batch_idx, optimizer):
        optimizer.zero_grad(set_to_none=False)


class Smooths(Quiet):
    """Carries a tensor from step to step."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))
        self.last = torch.zeros(())

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.mean.mul_(0.9).add_(0.1 * loss.detach())
        self.last = loss.detach() + self.last * 0.5
        return loss + 0.01 * self.last


@pytest.mark.narrow(11)
@pytest.mark.parametrize(
    ("make", "in_rows"),
    [
        (CountsByHand, False),
        (LogsAtEnds, True),
        (Reads, False),
        (Dampens, True),
        (Counted, True),
        (Clears, None),
        (Keeps, None),
        (Smooths, False),
    ],
)
def test_steps_that_are_not_all_alike(rows, make, in_rows):
    options = {"accumulate_grad_batches": 4, "max_epochs": 3, "log_every_n_steps": 2}
    compare(make, "traced", -1, data=many, **options)
    assert in_rows is None or bool(rows) == in_rows


class Lengths:
    """Batches of which some have another number of rows, always at the same place in a window."""

    def __init__(self, other, every):
        sizes = [other if number % every == 1 else 8 for number in range(96)]
        generator = torch.Generator().manual_seed(3)
        self.batches = [
            (torch.randn(size, 6, generator=generator), torch.randint(0, 3, (size,), generator=generator))
            for size in sizes
        ]

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        return iter(self.batches)


class Silent(L.LightningModule):
    """Logs nothing, so that its steps differ by nothing but their batches."""

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(6, 3)

    def training_step(self, batch, batch_idx):
        x, y = batch
        return nn.functional.cross_entropy(self.net(x), y, reduction="sum") / len(x)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.mark.narrow(13)
@pytest.mark.parametrize(
    ("every", "other", "engine"),
    [(4, 5, "traced"), (8, 11, "traced"), (4, 11, "traced"), pytest.param(4, 5, "inductor", marks=missing)],
)
def test_windows_of_batches_of_several_sizes(rows, engine, other, every):
    options = {"accumulate_grad_batches": 4, "max_epochs": 3}
    compare(Silent, engine, -1, data=lambda: Lengths(other, every), **options)
    assert not rows or every == 8


def test_control_windows_that_are_cut_elsewhere_are_noticed(monkeypatch):
    original = L.pytorch.loops.training_epoch_loop._TrainingEpochLoop._should_accumulate
    expected = once(Quiet, many, max_epochs=1, accumulate_grad_batches=4)
    monkeypatch.setattr(
        L.pytorch.loops.training_epoch_loop._TrainingEpochLoop,
        "_should_accumulate",
        lambda self: original(self) if self.batch_idx < 20 else (self.batch_idx + 2) % 4 != 0,
    )
    with pytest.raises(AssertionError):
        assert_parity(expected, once(Quiet, many, max_epochs=1, accumulate_grad_batches=4))
