"""Bars that move within a sink, and which bar a training gets."""

import io
import pickle
import re
from contextlib import nullcontext

import lightning as L
import pytest
from lightning.pytorch.callbacks import ModelCheckpoint, ProgressBar, RichProgressBar, TQDMProgressBar
from torch import nn

from lightning_sink import SinkProgressBar, SinkRichProgressBar, SinkStrategy, callbacks
from lightning_sink.engine.compiler.toolchain import missing_compiler
from lightning_sink.trainer import progress
from lightning_sink.trainer.progress import SinkListener, SinkProgress
from parity import QUIET, Net, loader, train

missing = pytest.mark.skipif(missing_compiler() is not None, reason="no C++ compiler")

BARS = {"tqdm": SinkProgressBar, "rich": SinkRichProgressBar}
EVERY_BAR = pytest.mark.parametrize("kind", BARS)
SHOWN = {"enable_progress_bar": True}


@pytest.fixture
def always(monkeypatch):
    """Bars are drawn whenever they are told something."""
    monkeypatch.setattr(callbacks, "_EVERY", 0.0)


def shown(bar):
    """The batches that a training's bar shows as done."""
    return int(bar.train_progress_bar.n if isinstance(bar, TQDMProgressBar) else bar.train_progress_bar.completed)


def watched(kind):
    """A bar, and the places that it has shown: within sinks, and when Lightning told it of a batch."""
    within, told = [], []

    class Bar(BARS[kind]):
        def on_sink_progress(self, trained, queued):
            super().on_sink_progress(trained, queued)
            within.append((trained, shown(self)))

        def on_train_batch_end(self, *given):
            super().on_train_batch_end(*given)
            told.append(shown(self))

    return Bar(), within, told


# -- within a sink -----------------------------------------------------------------------------------------------------


@EVERY_BAR
@pytest.mark.parametrize("engine", ["eager", "traced"])
def test_a_bar_moves_within_a_sink_and_no_hook_is_called_for_it(kind, engine, always, capfd):
    bar, within, told = watched(kind)
    train(Net(), loader(60), SinkStrategy(25, epoch="dataset", engine=engine), callbacks=[bar], max_epochs=1, **SHOWN)
    assert told == [25, 50, 60]
    assert all(trained == done for trained, done in within)
    places = [done for _, done in within]
    assert places == sorted(places)
    assert set(places) <= set(range(60))
    assert len(set(places) - {0, 25, 50}) >= 3  # the steps in a row are one visit


class Counting(SinkListener):
    """Keeps, of all that it is told, the most batches trained beyond those that were, by the optimizer's own count."""

    beyond = -1000
    told = 0

    def __init__(self, steps):
        self.steps = steps

    def on_sink_progress(self, trained, queued):
        self.told += 1
        self.beyond = max(self.beyond, trained - self.steps())


@pytest.mark.narrow(11)
@missing
@pytest.mark.parametrize("fails_at", [None, 137])
@pytest.mark.parametrize("counts", ["what has run", "control: what was gone through"])
def test_steps_that_were_gone_through_and_not_run_are_no_progress(fails_at, counts, monkeypatch):
    """With a schedule, the next steps are gone through while others run; a wrong index ends a row early."""
    if counts != "what has run":
        tell = SinkProgress.tell
        monkeypatch.setattr(SinkProgress, "tell", lambda self, waiting=0: tell(self))
    data = loader(300, last=8)
    if fails_at is not None:
        data.dataset.tensors[1][fails_at * 8] = 99
    module = Net("adam", schedule="onecycle", total_steps=1000)
    module.net[3] = nn.Identity()  # no dropout: rows go on without a draw

    def steps():
        (state, *_) = module.trainer.optimizers[0].state.values() or [{}]
        return int(state.get("step", 0))

    told = Counting(steps)
    strategy = SinkStrategy(300, epoch="dataset", fallback="error")
    with pytest.raises(IndexError) if fails_at is not None else nullcontext():
        train(module, data, strategy, callbacks=[told], max_epochs=1)
    assert told.told > 5
    assert (told.beyond <= 1) == (counts == "what has run")  # the step that is about to run is told of before it


@EVERY_BAR
def test_it_is_drawn_ten_times_a_second_at_most(kind, monkeypatch, capfd):
    clock = [100.0]
    monkeypatch.setattr(callbacks.time, "monotonic", lambda: clock[0])
    bar, within, _ = watched(kind)
    train(Net(), loader(20), SinkStrategy(engine="eager"), callbacks=[bar], max_epochs=1, **SHOWN)
    # The clock stands still. Rich's speed is that between two drawings, so it has one besides.
    assert {done for _, done in within} == ({0, 1} if kind == "rich" else {0})

    class Passes(L.Callback):
        def on_before_zero_grad(self, *_):
            clock[0] += 0.03

    bar, within, _ = watched(kind)
    train(Net(), loader(20), SinkStrategy(engine="eager"), callbacks=[bar, Passes()], max_epochs=1, **SHOWN)
    assert {0, 4, 8, 12, 16} - {done for _, done in within} <= ({4, 8, 12, 16} if kind == "rich" else set())
    assert len({done for _, done in within}) <= 7


def test_the_line_has_speed_and_queue(always, capsys):
    train(Net(), loader(60), SinkStrategy(engine="traced"), callbacks=[SinkProgressBar()], max_epochs=2, **SHOWN)
    lines = [line for line in capsys.readouterr().out.replace("\r", "\n").splitlines() if "queue=" in line]
    assert any("it/s" in line and "/60 [" in line for line in lines)
    assert all(line.count("queue=") == 1 for line in lines)
    assert any("loss_forked" in line for line in lines)


def test_metrics_that_a_subclass_chooses_are_kept(always, capsys):
    class Mine(SinkProgressBar):
        def get_metrics(self, trainer, pl_module):
            return {"mine": 7}

    train(Net(), loader(60), SinkStrategy(20, engine="eager"), callbacks=[Mine()], max_epochs=2, **SHOWN)
    lines = [line for line in capsys.readouterr().out.replace("\r", "\n").splitlines() if "Epoch 1" in line]
    assert any("mine=7, queue=" in line for line in lines)
    assert not any("loss" in line for line in lines)


def speeds(out):
    return [float(found) for found in re.findall(r"([\d.]+)it/s", out)]


@EVERY_BAR
def test_what_was_trained_before_is_no_speed(kind, always, tmp_path, capfd):
    """A training that goes on in the middle of an epoch."""
    kept = ModelCheckpoint(tmp_path, every_n_train_steps=30, save_top_k=-1, filename="{step}")
    train(Net(), loader(60), callbacks=[kept], max_epochs=1, enable_checkpointing=True)
    bar, within, told = watched(kind)
    strategy = SinkStrategy(10, epoch="dataset", engine="eager")
    options = {"callbacks": [bar], "checkpoint": tmp_path / "step=30.ckpt", "max_epochs": 1, **SHOWN}
    train(Net(), loader(60), strategy, **options)
    assert told == [40, 50, 60]
    assert within[0] == (30, 30)
    if kind == "tqdm":
        assert bar.train_progress_bar.initial == 30


@EVERY_BAR
def test_a_short_sink_has_a_speed(kind, capsys):
    out = io.StringIO()
    bars = {
        "tqdm": SinkProgressBar,
        "rich": lambda: SinkRichProgressBar(console_kwargs={"file": out, "force_terminal": True, "width": 200}),
    }
    train(Net(), loader(20), SinkStrategy(engine="eager"), callbacks=[bars[kind]()], max_epochs=2, **SHOWN)
    assert speeds(out.getvalue() + capsys.readouterr().out)[-1] > 0


def test_the_rich_line_has_the_queue(always):
    out = io.StringIO()
    bar = SinkRichProgressBar(console_kwargs={"file": out, "force_terminal": True, "width": 200})
    train(Net(), loader(60), SinkStrategy(engine="traced"), callbacks=[bar], max_epochs=1, **SHOWN)
    assert "queue " in out.getvalue()
    assert "60/60" in out.getvalue()


@EVERY_BAR
def test_a_bar_that_is_switched_off_draws_nothing(kind, always, capfd):
    bar = BARS[kind](refresh_rate=0)
    train(Net(), loader(20), SinkStrategy(engine="eager"), callbacks=[bar], max_epochs=1, **SHOWN)
    out = capfd.readouterr().out
    assert "queue" not in out
    assert "/20" not in out


@EVERY_BAR
def test_without_sinks_it_is_lightnings(kind, always, capfd):
    bar, within, told = watched(kind)
    train(Net(), loader(9), callbacks=[bar], max_epochs=1, **SHOWN)
    assert told == list(range(1, 10))
    assert within == []


@EVERY_BAR
def test_epochs_validation_and_a_second_fit(kind, always, capfd):
    bar, within, told = watched(kind)
    strategy = SinkStrategy(5, epoch="dataset", engine="eager")
    run = train(Net(), loader(9), strategy, validation=loader(2), callbacks=[bar], max_epochs=2, **SHOWN)
    assert told == [5, 9, 5, 9]
    assert within[0][1] == 0
    run.trainer.fit_loop.max_epochs = 3
    run.trainer.fit(run.module, loader(9))
    assert told == [5, 9] * 3


@EVERY_BAR
def test_a_bar_goes_with_a_pickled_trainer(kind):
    copied = pickle.loads(pickle.dumps(BARS[kind]()))
    assert isinstance(copied, BARS[kind])


# -- which bar ---------------------------------------------------------------------------------------------------------


def bar_of(strategy, module=None, **options):
    trainer = L.Trainer(strategy=strategy, logger=False, max_epochs=1, **{**QUIET, **SHOWN, **options})
    trainer.fit(module or Net(), loader(2))
    found = [item for item in trainer.callbacks if isinstance(item, ProgressBar)]
    assert found == [trainer.progress_bar_callback]
    return found[0]


@pytest.mark.parametrize(("rich", "expected"), [(True, SinkRichProgressBar), (False, SinkProgressBar)])
def test_a_training_in_sinks_gets_a_bar_that_moves(rich, expected, monkeypatch, capfd):
    monkeypatch.setattr("lightning.pytorch.trainer.connectors.callback_connector._RICH_AVAILABLE", rich)
    monkeypatch.setattr(progress, "_RICH_AVAILABLE", rich)
    assert type(bar_of(SinkStrategy(engine="eager"))) is expected


def test_without_sinks_the_bar_is_lightnings_own(capfd):
    assert type(bar_of(SinkStrategy(dataset_sink_mode=False))) is RichProgressBar
    assert type(bar_of("auto")) is RichProgressBar


class Chosen(RichProgressBar):
    """A bar of the user's."""


@pytest.mark.parametrize(
    "bar",
    [TQDMProgressBar(), TQDMProgressBar(refresh_rate=10), RichProgressBar(leave=True), Chosen(), SinkProgressBar()],
    ids=["another", "a rate", "stays", "subclass", "ours"],
)
def test_a_bar_that_was_chosen_is_kept(bar, capfd):
    assert bar_of(SinkStrategy(engine="eager"), callbacks=[bar]) is bar


def test_a_bar_of_the_modules_own_is_kept(capfd):
    chosen = RichProgressBar(leave=True)

    class Brings(Net):
        def configure_callbacks(self):
            return [chosen]

    assert bar_of(SinkStrategy(engine="eager"), Brings()) is chosen


def test_beside_a_bar_of_the_modules_own_lightnings_stays(capfd):
    """Two bars, as in plain Lightning."""

    class Brings(Net):
        def configure_callbacks(self):
            return [TQDMProgressBar()]

    trainer = L.Trainer(strategy=SinkStrategy(engine="eager"), logger=False, max_epochs=1, **{**QUIET, **SHOWN})
    trainer.fit(Brings(), loader(2))
    bars = [item for item in trainer.callbacks if isinstance(item, ProgressBar)]
    assert [type(bar) for bar in bars] == [RichProgressBar, TQDMProgressBar]


def test_no_bar_stays_no_bar():
    trainer = L.Trainer(strategy=SinkStrategy(engine="eager"), logger=False, max_epochs=1, **QUIET)
    trainer.fit(Net(), loader(2))
    assert trainer.progress_bar_callback is None
