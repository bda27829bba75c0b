"""`self.log` in sinks: what reaches loggers, callbacks and the history is what plain Lightning logs."""

import csv

import lightning as L
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger
from torch import nn

from lightning_sink import SinkStrategy
from parity import QUIET, Net, assert_parity, assert_tensors, compare, loader

ENGINES = pytest.mark.parametrize("engine", ["eager", "traced"])


def short():
    return loader(9)


class Value(Net):
    """Logs one value of its own in `training_step`, with given options."""

    def __init__(self, **options):
        super().__init__()
        self.options = options

    def training_step(self, batch, batch_idx):
        self.log("value", batch[0].square().mean(), **self.options)
        return super().training_step(batch, batch_idx)


OPTIONS = [
    {},
    {"on_step": True, "on_epoch": True},
    {"on_step": False, "on_epoch": True},
    {"on_step": True, "on_epoch": False},
    {"prog_bar": True},
    {"prog_bar": True, "logger": False, "on_epoch": True},
    {"logger": False},
    {"on_epoch": True, "reduce_fx": "mean"},
    {"on_epoch": True, "reduce_fx": "sum"},
    {"on_epoch": True, "reduce_fx": torch.sum, "on_step": False},
    {"on_epoch": True, "reduce_fx": "min"},
    {"on_epoch": True, "reduce_fx": "max"},
    {"on_epoch": True, "reduce_fx": max, "on_step": False},
    {"on_epoch": True, "batch_size": 5},
    {"on_epoch": True, "batch_size": 5, "reduce_fx": "sum"},
    {"on_epoch": True, "enable_graph": True},
    {"on_epoch": True, "add_dataloader_idx": False},
    {"on_epoch": True, "sync_dist": True, "rank_zero_only": True},
]


def shown(run):
    """What progress bars and callbacks find after the training."""
    return {
        f"{kind} {name}": torch.as_tensor(float(value))
        for kind in ("progress_bar", "logged")
        for name, value in getattr(run.trainer, f"{kind}_metrics").items()
    }


def name_of(options):
    return "-".join(f"{key}={getattr(value, '__name__', value)}" for key, value in options.items())


@pytest.mark.narrow(13)
@ENGINES
@pytest.mark.parametrize("options", OPTIONS, ids=name_of)
def test_every_option(options, engine):
    plain, sink = compare(lambda: Value(**options), engine, data=short)
    assert_tensors(shown(plain), shown(sink), engine == "eager")


def test_control_another_option_is_seen():
    plain, _ = compare(lambda: Value(on_epoch=True), "eager", data=short)
    _, sink = compare(lambda: Value(on_epoch=True, reduce_fx="max"), "eager", data=short)
    with pytest.raises(AssertionError):
        assert_parity(plain, sink)


class Dictionary(Net):
    def training_step(self, batch, batch_idx):
        values = {"first": batch[0].mean(), "second": batch[0].std()}
        self.log_dict(values, prog_bar=True, on_step=True, on_epoch=True, batch_size=3)
        self.log_dict({"third": batch[0].amax()})
        return super().training_step(batch, batch_idx)


@ENGINES
def test_log_dict(engine):
    compare(Dictionary, engine)


HOOKS = [
    "on_train_batch_start",
    "on_train_batch_end",
    "on_before_zero_grad",
    "on_before_backward",
    "on_after_backward",
    "on_before_optimizer_step",
]


def logging_in(hook, **options):
    """A module that logs the sum of its first weight in a hook."""

    def override(self, *args, **kwargs):
        self.log("hooked", self.net[0].weight.abs().sum(), **options)
        return getattr(Net, hook)(self, *args, **kwargs)

    return type("Hooked", (Net,), {hook: override})


@pytest.mark.narrow(13)
@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize(("engine", "accumulate"), [("eager", 2), ("traced", 1), ("traced", 2)])
def test_every_hook_of_the_module_may_log(hook, accumulate, engine):
    kind = logging_in(hook, on_step=True, on_epoch=True)
    compare(kind, engine, data=short, accumulate_grad_batches=accumulate)


class Norms(Net):
    def on_before_optimizer_step(self, optimizer):
        norms = [p.grad.norm() for p in self.parameters() if p.grad is not None]
        self.log_dict({f"norm_{index}": norm for index, norm in enumerate(norms)})
        self.log("norm", torch.stack(norms).norm(), on_step=True, on_epoch=True)


@ENGINES
def test_gradient_norms(engine):
    compare(Norms, engine, gradient_clip_val=0.1)


@pytest.mark.narrow(13)
@ENGINES
@pytest.mark.parametrize("sink_size", [4, -1])
@pytest.mark.parametrize("every", [1, 3, 50])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_rows_have_plain_lightnings_steps(sink_size, every, accumulate, engine):
    plain, _ = compare(
        lambda: Net("adam", "onecycle"),
        engine,
        sink_size,
        log_every_n_steps=every,
        accumulate_grad_batches=accumulate,
    )
    assert len(plain.rows) >= 2


def csv_rows(strategy, folder):
    logger = CSVLogger(folder, flush_logs_every_n_steps=5)
    torch.manual_seed(7)
    trainer = L.Trainer(max_epochs=2, strategy=strategy, logger=logger, log_every_n_steps=2, **QUIET)
    trainer.fit(Norms(), loader(), loader(3))
    with open(f"{logger.log_dir}/metrics.csv") as file:
        return list(csv.DictReader(file))


@ENGINES
@pytest.mark.parametrize("sink_size", [4, -1])
def test_the_csv_file(sink_size, engine, tmp_path):
    plain = csv_rows("auto", tmp_path / "plain")
    sink = csv_rows(SinkStrategy(sink_size, epoch="dataset", engine=engine), tmp_path / "sink")
    if engine == "eager":
        assert plain == sink
    assert [{name: bool(text) for name, text in row.items()} for row in plain] == [
        {name: bool(text) for name, text in row.items()} for row in sink
    ]
    assert [(row["epoch"], row["step"]) for row in plain] == [(row["epoch"], row["step"]) for row in sink]
    for expected, found in zip(plain, sink, strict=True):
        for name, text in expected.items():
            assert not text or float(found[name]) == pytest.approx(float(text), rel=1e-3)


class Sometimes(Net):
    def training_step(self, batch, batch_idx):
        if batch_idx % 3 == 0:
            self.log("sometimes", batch[0].mean(), on_step=True, on_epoch=True)
        return super().training_step(batch, batch_idx)


@ENGINES
def test_logging_that_depends_on_the_batch_index(engine):
    compare(Sometimes, engine)


class Numbers(Net):
    def training_step(self, batch, batch_idx):
        self.log("number", 2.5, on_epoch=True)
        self.log("whole", 3, on_epoch=True, reduce_fx="sum")
        self.log("truth", True)
        self.log("size", float(len(batch[0])), on_epoch=True, on_step=True)
        self.log("rate", self.trainer.optimizers[0].param_groups[0]["lr"])
        self.log("rate_by_name", self.optimizers().param_groups[0]["lr"], on_epoch=True)
        return super().training_step(batch, batch_idx)


@ENGINES
def test_python_numbers_and_the_learning_rate(engine):
    plain, _ = compare(lambda: Numbers(schedule="onecycle"), engine, log_every_n_steps=1)
    assert len({row["rate"] for _, row in plain.rows if "rate" in row}) > 20


class ScheduledRate(Net):
    def training_step(self, batch, batch_idx):
        self.log("scheduled", self.lr_schedulers().get_last_lr()[0])
        return super().training_step(batch, batch_idx)


@ENGINES
def test_the_rate_that_a_scheduler_tells(engine):
    plain, sink = compare_any(lambda: ScheduledRate(schedule="onecycle"), engine, log_every_n_steps=1)
    assert len({row["scheduled"] for _, row in plain.rows if "scheduled" in row}) > 20


def compare_any(make, engine, **options):
    """Parity for a step that may be compiled or not."""
    try:
        return compare(make, engine, **options)
    except AssertionError:
        return compare(make, engine, eager="", **options)


class Metrics(Net):
    def __init__(self):
        super().__init__()
        from torchmetrics.classification import MulticlassAccuracy

        self.seen = MulticlassAccuracy(3, average="micro")
        self.classes = nn.ModuleList([MulticlassAccuracy(3)])

    def training_step(self, batch, batch_idx):
        x, y = batch
        with torch.no_grad():
            logits = self.net[-1](self.net[0](x).relu())
        self.seen(logits, y)
        self.classes[0].update(logits, y)
        self.log("seen", self.seen, on_step=True, on_epoch=True)
        self.log("classes", self.classes[0], on_step=False, on_epoch=True)
        return super().training_step(batch, batch_idx)


@ENGINES
def test_metric_objects(engine):
    compare(Metrics, engine, -1, data=short)


class Seen(L.Callback):
    """Keeps what the metrics are when a batch ends."""

    def __init__(self, kept):
        self.kept = kept

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        total = trainer.fit_loop.epoch_loop.batch_progress.total.ready
        for kind in ("callback", "logged", "progress_bar"):
            for name, value in getattr(trainer, f"{kind}_metrics").items():
                self.kept[f"{kind} {name} after {total}"] = torch.as_tensor(float(value))


@pytest.mark.narrow(11)
@ENGINES
@pytest.mark.parametrize("kind", [Net, Dictionary, *map(logging_in, HOOKS)])
def test_callbacks_see_plain_lightnings_metrics_at_sink_ends(kind, engine):
    kept = []

    def callbacks():
        kept.append({})
        return [Seen(kept[-1])]

    compare(kind, engine, data=short, callbacks=callbacks)
    plain, sink = kept
    assert len(plain) > len(sink) > 5
    assert_tensors({name: plain[name] for name in sink}, sink, engine == "eager")


@pytest.mark.narrow(11)
@ENGINES
@pytest.mark.parametrize("sink_size", [5, -1])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_history_is_the_last_sink_step_by_step(sink_size, accumulate, engine):
    plain, sink = compare(
        lambda: Value(on_step=True), engine, sink_size, accumulate_grad_batches=accumulate, log_every_n_steps=1
    )
    history = sink.trainer.strategy.history
    length = 2 if sink_size == 5 else 17
    assert set(history) == {"loss", "value", "loss_forked", "accuracy", "largest"}
    assert {tuple(column.shape) for column in history.values()} == {(length,)}
    for offset, loss in enumerate(history["loss"]):
        total = 34 - length + offset + 1
        assert_tensors({"loss": plain.events.losses[total]}, {"loss": loss}, engine == "eager")
    torch.testing.assert_close(history["loss"] * accumulate, history["loss_forked"])


class Thirds(Net):
    def training_step(self, batch, batch_idx):
        if batch_idx % 3 == 0:
            self.log("third", batch[0].mean())
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])


@ENGINES
def test_history_is_nan_where_a_step_did_not_log(engine):
    _, sink = compare(Thirds, engine, -1)
    history = sink.trainer.strategy.history
    assert set(history) == {"loss", "third"}
    assert history["third"].isnan().tolist() == [index % 3 != 0 for index in range(17)]
    expected = torch.stack([batch[0].mean() for index, batch in enumerate(loader()) if index % 3 == 0])
    torch.testing.assert_close(history["third"][~history["third"].isnan()], expected)


@ENGINES
def test_history_has_the_loss_where_nothing_is_logged(engine):
    plain, sink = compare(Silent, engine, -1)
    history = sink.trainer.strategy.history
    assert set(history) == {"loss"}
    expected = torch.stack([plain.events.losses[total] for total in range(18, 35)])
    torch.testing.assert_close(history["loss"], expected, rtol=1e-4, atol=1e-6)


class Silent(Net):
    def training_step(self, batch, batch_idx):
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])
