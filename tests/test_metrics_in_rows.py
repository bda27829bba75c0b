"""Steps that measure run in rows, and what they measure is plain Lightning's."""

import itertools

import lightning as L
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MetricCollection
from torchmetrics.aggregation import CatMetric, MeanMetric
from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score
from torchmetrics.wrappers import MinMaxMetric

from lightning_sink import SinkStrategy
from lightning_sink.data import pace
from lightning_sink.engine.compiler.toolchain import missing_compiler
from lightning_sink.trainer import loop_sink
from parity import QUIET, Net, Rows, assert_parity, both, loader, once
from test_steps_in_a_row import InMemory

missing = pytest.mark.skipif(missing_compiler() is not None, reason="no C++ compiler")
STEPS = 60


class Measured(Net):
    """Measures in the ways that users do; draws nothing."""

    def __init__(self):
        super().__init__()
        self.net[3] = nn.Identity()
        self.accuracy = MulticlassAccuracy(3)
        self.mean, self.all = MeanMetric(), CatMetric()
        self.both = MetricCollection([MulticlassAccuracy(3, average="micro"), MulticlassF1Score(3)], prefix="both/")

    def training_step(self, batch, batch_idx):
        x, y = batch
        scores = self.net(x)
        loss = nn.functional.cross_entropy(scores, y)
        self.accuracy(scores, y)
        self.log("accuracy", self.accuracy, on_step=True, on_epoch=True)
        self.log("mean", self.mean(loss), on_step=True, on_epoch=True)
        self.both.update(scores, y)
        self.log_dict(self.both, on_step=False, on_epoch=True)
        self.all.update(loss)
        self.log("half", 0.5 * loss, on_step=True, on_epoch=True)
        return loss

    def on_train_epoch_end(self):
        self.log("spread", self.all.compute().std())
        self.all.reset()


def many():
    return loader(STEPS, last=8)


class Bounded(Measured):
    """In the steps that are recorded one tensor is what was measured and the largest of all; later it is not."""

    def __init__(self):
        super().__init__()
        self.bounded = MinMaxMetric(MeanMetric())

    def training_step(self, batch, batch_idx):
        found = self.bounded(batch[0].abs().mean())
        self.log_dict(found, on_step=True, on_epoch=False)
        return super().training_step(batch, batch_idx)


def rising_then_falling():
    batches = [(x, y) for x, y in many()]
    return InMemory(sorted(batches[:20], key=lambda b: float(b[0].abs().mean())) + batches[20:])


def test_a_tensor_that_is_logged_by_two_names_is_either_ones(chunks):
    plain, sink = both(Bounded, rising_then_falling, SinkStrategy(-1, epoch="dataset", engine="traced"), max_epochs=1)
    assert_parity(plain, sink)
    rows = [row for _, row in plain.rows if "raw" in row]
    assert {row["raw"] == row["max"] for row in rows} == {False, True}
    assert sum(chunks) > 20


class Filling(Measured):
    """Has a number written where a part of its loss is none: into the very tensor that it adds."""

    def __init__(self):
        super().__init__()
        self.filled = MeanMetric(nan_strategy=0.0)

    def training_step(self, batch, batch_idx):
        x, y, weight = batch
        part = weight * x.abs().mean()
        self.filled.update(part)
        return super().training_step((x, y), batch_idx) * (1 + part)


def test_a_metric_that_may_write_to_what_it_is_given_is_met_by_each_step():
    def data():
        weights = [torch.tensor(torch.nan if number == 40 else 0.1) for number in range(STEPS)]
        return InMemory([(x, y, weight) for (x, y), weight in zip(many(), weights, strict=True)])

    plain, sink = both(Filling, data, SinkStrategy(-1, epoch="dataset", engine="traced"), max_epochs=1)
    assert_parity(plain, sink)
    assert all(tensor.isfinite().all() for tensor in plain.tensors.values())
    assert any("`MeanMetric.update()` with a number as its `nan_strategy`" in text for text in sink.warned)


@pytest.mark.narrow(13)
@pytest.mark.parametrize(
    ("engine", "size"),
    [("eager", -1), ("eager", 25), ("traced", -1), ("traced", 25), pytest.param("inductor", -1, marks=missing)],
)
def test_rows_that_measure_are_plain_lightnings(chunks, engine, size):
    plain, sink = both(Measured, many, SinkStrategy(size, epoch="dataset", engine=engine), max_epochs=3)
    assert_parity(plain, sink, exact=engine == "eager")
    assert not [text for text in sink.warned if "eagerly" in text]
    assert sum(chunks) > 2 * STEPS or engine == "eager"
    for metric, expected in zip(sink.module.both.values(), plain.module.both.values(), strict=True):
        assert metric._update_count == expected._update_count


@pytest.mark.narrow(13)
@pytest.mark.parametrize(
    ("engine", "most", "accumulate"),
    [
        *itertools.product(["traced"], [7, loop_sink._MOST_LEFT], [3, 8]),
        pytest.param("inductor", loop_sink._MOST_LEFT, 3, marks=missing),
    ],
)
def test_windows_that_measure_are_plain_lightnings(chunks, engine, accumulate, most, monkeypatch):
    monkeypatch.setattr(loop_sink, "_MOST_LEFT", most)
    options = {"accumulate_grad_batches": accumulate, "log_every_n_steps": 2, "max_epochs": 3}
    plain, sink = both(Measured, many, SinkStrategy(-1, epoch="dataset", engine=engine), **options)
    assert_parity(plain, sink, exact=False)
    assert sum(chunks) > STEPS
    assert set(chunks) <= {*range(accumulate, STEPS, accumulate)}


class MeasuresOneTurnOtherwise(Measured):
    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        if batch_idx % 3 == 1:
            self.both.update(self.net(batch[0]), batch[1])
        return loss


def test_steps_of_a_window_that_measure_otherwise_run_one_by_one(chunks):
    strategy = SinkStrategy(-1, epoch="dataset", engine="traced")
    plain, sink = both(MeasuresOneTurnOtherwise, many, strategy, accumulate_grad_batches=3, max_epochs=2)
    assert_parity(plain, sink)
    assert not chunks


@pytest.mark.narrow(11)
@pytest.mark.parametrize("engine", ["traced", pytest.param("inductor", marks=missing)])
def test_the_history_has_what_was_measured_in_each_step(engine):
    eager, compiled = (
        once(Measured, many, SinkStrategy(-1, epoch="dataset", engine=by), max_epochs=2) for by in ("eager", engine)
    )
    expected, found = (run.trainer.strategy.history for run in (eager, compiled))
    assert set(expected) == set(found) >= {"loss", "accuracy", "mean", "half"}
    for name, values in expected.items():
        assert values.shape == found[name].shape == (STEPS,)
        torch.testing.assert_close(found[name], values, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("most", [7, 20])
def test_calls_for_few_steps_at_a_time_come_to_the_same(chunks, most, monkeypatch):
    monkeypatch.setattr(loop_sink, "_MOST_LEFT", most)
    plain, sink = both(Measured, many, SinkStrategy(-1, epoch="dataset", engine="traced"), max_epochs=2)
    assert_parity(plain, sink)
    assert chunks


class Refuses(MeanMetric):
    """A user's metric that takes no loss of a batch marked by a large number."""

    def update(self, value):
        if value > 1e3:
            raise LookupError(f"a loss of {float(value):.0f}")
        super().update(value)


class Marked(Measured):
    def __init__(self):
        super().__init__()
        self.mean = Refuses(nan_strategy="disable")

    def training_step(self, batch, batch_idx):
        *batch, mark = batch
        loss = super().training_step(batch, batch_idx)
        self.mean.update(loss + mark.mean())
        return loss


@pytest.mark.narrow(11)
@pytest.mark.parametrize(
    ("engine", "where", "accumulate"),
    [*itertools.product(["traced"], [30, 41], [1, 3]), pytest.param("inductor", 41, 1, marks=missing)],
)
def test_an_error_of_a_metrics_names_its_batch_and_steps_that_have_run_count(
    engine, where, accumulate, chunks, monkeypatch
):
    monkeypatch.setattr(pace, "_WARM_UP", 0)
    monkeypatch.setattr(pace, "_TRIAL", 3)
    x, y = many().dataset.tensors
    marks = 1e4 * (torch.arange(len(x)) // 8 == where)
    marked = DataLoader(TensorDataset(x, y, marks), batch_size=8)
    torch.manual_seed(7)
    module = Marked()
    options = {"accumulate_grad_batches": accumulate, **QUIET}
    strategy = SinkStrategy(-1, epoch="dataset", engine=engine)
    trainer = L.Trainer(strategy=strategy, max_epochs=1, logger=[Rows()], **options)
    with pytest.raises(LookupError, match="a loss of 1") as caught:
        trainer.fit(module, marked)
    assert sum(chunks) > 30
    assert any(f"batch {where} of epoch 0" in note for note in caught.value.__notes__)
    assert int(module.all.update_count) > where
    torch.manual_seed(7)
    plain = Measured()
    L.Trainer(max_steps=trainer.global_step, logger=False, **options).fit(plain, many())
    for expected, found in zip(plain.parameters(), module.parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


class Reads(L.Callback):
    """Looks at what was measured where callbacks are met, and once in between."""

    def __init__(self):
        self.seen = {}

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.seen[trainer.global_step] = pl_module.accuracy.compute(), pl_module.mean._update_count

    def state_dict(self):
        return {}


def test_callbacks_at_the_ends_of_sinks_find_every_step_measured():
    plain, sink = both(
        Measured, many, SinkStrategy(25, epoch="dataset", engine="traced"), max_epochs=2, callbacks=lambda: [Reads()]
    )
    expected, found = (run.trainer.callbacks[-1].seen for run in (plain, sink))
    assert set(found) == {25, 50, 60, 85, 110, 120}
    for step, (value, count) in found.items():
        assert count == expected[step][1]
        torch.testing.assert_close(value, expected[step][0])


def test_metrics_that_are_kept_in_checkpoints_are_as_in_plain_lightning(tmp_path):
    from lightning.pytorch.callbacks import ModelCheckpoint

    class Persistent(Measured):
        def __init__(self):
            super().__init__()
            self.accuracy.persistent(True)

    def saved(strategy, folder):
        torch.manual_seed(7)
        keep = ModelCheckpoint(folder, every_n_train_steps=40, save_top_k=-1)
        options = {**QUIET, "enable_checkpointing": True}
        L.Trainer(strategy=strategy, max_epochs=1, callbacks=[keep], logger=[Rows()], **options).fit(
            Persistent(), many()
        )
        (path,) = folder.glob("*.ckpt")
        return torch.load(path, weights_only=False)["state_dict"]

    plain = saved("auto", tmp_path / "plain")
    sink = saved(SinkStrategy(-1, epoch="dataset", engine="traced"), tmp_path / "sink")
    assert {"accuracy.tp", "accuracy.fn"} <= set(plain) == set(sink)
    for name, tensor in plain.items():
        torch.testing.assert_close(sink[name], tensor, rtol=1e-4, atol=1e-6)


class LogsOnly(Measured):
    """Logs a metric that is updated elsewhere."""

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.cross_entropy(self.net(x), y)
        self.log("mean", self.mean, on_step=False, on_epoch=True)
        self.log("loss", loss)
        return loss

    def on_train_epoch_start(self):
        self.mean.update(torch.tensor(float(self.current_epoch)))

    def on_train_epoch_end(self):
        pass


@pytest.mark.parametrize("engine", ["eager", "traced"])
def test_a_metric_that_steps_only_log(engine):
    plain, sink = both(LogsOnly, many, SinkStrategy(-1, epoch="dataset", engine=engine), max_epochs=2)
    assert_parity(plain, sink, exact=engine == "eager")


@pytest.mark.parametrize("engine", ["eager", "traced"])
def test_a_test_before_the_training_leaves_tensors_of_inference_mode(engine):
    class Tested(Net):
        def __init__(self):
            super().__init__()
            self.net[3] = nn.Identity()
            self.accuracy = MulticlassAccuracy(3)

        def test_step(self, batch, batch_idx):
            self.accuracy(self.net(batch[0]), batch[1])
            self.log("tested", self.accuracy)

        def training_step(self, batch, batch_idx):
            return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    found = []
    for strategy in ("auto", SinkStrategy(20, epoch="dataset", engine=engine)):
        torch.manual_seed(1)
        module, trainer = Tested(), L.Trainer(strategy=strategy, max_epochs=1, **QUIET)
        trainer.test(module, loader(5), verbose=False)
        trainer.fit(module, loader(STEPS, last=8))
        trainer.test(module, loader(5), verbose=False)
        found.append([*module.parameters(), trainer.callback_metrics["tested"]])
    for plain, sink in zip(*found, strict=True):
        torch.testing.assert_close(plain, sink)
