"""Lightning's callbacks and the user's at the ends of sinks."""

import linecache
import re
from dataclasses import dataclass

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import (
    EarlyStopping,
    EMAWeightAveraging,
    LearningRateMonitor,
    ModelCheckpoint,
    RichProgressBar,
    SpikeDetection,
    ThroughputMonitor,
    TQDMProgressBar,
    WeightAveraging,
)

import positions
from lightning_sink import CompileError, SinkStrategy, StepCallback
from lightning_sink.trainer.callback_code import decides_by_counts
from parity import QUIET, Net, assert_parity, both, loader, once, train

ENGINES = pytest.mark.parametrize("engine", ["eager", "traced"])
SIZES = pytest.mark.parametrize("size", [-1, 4])


def strategy(engine, size=-1):
    return SinkStrategy(size, epoch="dataset", engine=engine)


@ENGINES
def test_early_stopping_on_a_value_of_training(engine):
    def stop():
        return [EarlyStopping("loss_forked_epoch", patience=2, min_delta=10.0)]

    plain, sink = both(Net, loader, strategy(engine, 5), callbacks=stop, max_epochs=9)
    assert_parity(plain, sink, exact=engine == "eager")
    assert plain.trainer.current_epoch == 3


@ENGINES
@SIZES
@pytest.mark.parametrize("bar", [TQDMProgressBar, RichProgressBar])
def test_progress_bars_are_right_at_the_end_of_each_sink(bar, size, engine, capsys):
    seen = []

    class Watched(bar):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)
            if bar is TQDMProgressBar:
                position = self.train_progress_bar.n, self.train_progress_bar.total
            else:
                task = self.progress.tasks[self.train_progress_bar_id]
                position = int(task.completed), int(task.total)
            metrics = self.get_metrics(trainer, pl_module)
            seen.append((batch_idx, *position, "loss_forked_step" in metrics, self.total_train_batches))

    trainer = L.Trainer(
        strategy=strategy(engine, size), callbacks=[Watched()], logger=False, max_epochs=2,
        **{**QUIET, "enable_progress_bar": True},
    )  # fmt: skip
    trainer.fit(Net(), loader())
    ends = [16] if size == -1 else [3, 7, 11, 15, 16]
    assert seen == [(end, end + 1, 17, True, 17) for end in ends] * 2


class Looks(L.Callback):
    def __init__(self):
        self.norms = []

    def on_after_backward(self, trainer, pl_module):
        self.norms.append(float(pl_module.net[0].weight.grad.norm()))


class Scales(L.Callback):
    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        for parameter in pl_module.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(0.5)


class Clears(L.Callback):
    def on_before_zero_grad(self, trainer, pl_module, optimizer):
        with torch.no_grad():
            pl_module.net[0].weight.mul_(0.99)


class Backs(L.Callback):
    def on_before_backward(self, trainer, pl_module, loss):
        with torch.no_grad():
            pl_module.net[0].weight.mul_(0.999)


@pytest.mark.narrow(11)
@ENGINES
@pytest.mark.parametrize("kind", [Scales, Clears, Backs])
def test_a_callback_inside_the_step_is_part_of_its_program(kind, engine):
    plain, sink = both(Net, loader, strategy(engine), callbacks=lambda: [kind()], max_epochs=2)
    assert_parity(plain, sink, exact=engine == "eager")
    assert sink.engine == engine
    assert not [text for text in sink.warned if "runs eagerly" in text]
    without, _ = both(Net, loader, strategy(engine), max_epochs=2)
    with pytest.raises(AssertionError):
        assert_parity(without, sink)


def test_a_callback_that_looks_at_values_makes_the_step_eager_with_its_line():
    callbacks = []

    def make():
        callbacks.append(Looks())
        return [callbacks[-1]]

    plain, sink = both(Net, loader, strategy("traced"), callbacks=make, max_epochs=2)
    assert_parity(plain, sink)
    assert sink.engine == "eager"
    (warning,) = [text for text in sink.warned if "runs eagerly" in text]
    path, line = re.search(r"\(([^()]*):(\d+)\)\. To compile", warning).groups()
    assert path == __file__
    assert "self.norms.append" in linecache.getline(path, int(line))
    assert callbacks[0].norms == pytest.approx(callbacks[1].norms, rel=1e-4)
    assert len(callbacks[1].norms) == 34


class Keeps(L.Callback):
    """What it does in the step shows only on itself."""

    def __init__(self):
        self.steps, self.largest = 0, torch.zeros(())


class Counts(Keeps):
    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        self.steps += 1


class Decides(Counts):
    def on_after_backward(self, trainer, pl_module):
        if self.steps % 3 == 0:
            pl_module.net[0].weight.grad.mul_(0.5)


class KeepsTensors(Keeps):
    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        self.largest = torch.maximum(self.largest, pl_module.net[0].weight.grad.abs().max())


class KeepsModule(Keeps):
    """An average of the weights, in a module of its own."""

    def __init__(self):
        super().__init__()
        self.average = torch.nn.Linear(6, 8, bias=False)
        torch.nn.init.zeros_(self.average.weight)

    def on_before_zero_grad(self, trainer, pl_module, optimizer):
        with torch.no_grad():
            self.average.weight.lerp_(pl_module.net[0].weight, 0.1)


@pytest.mark.parametrize("kind", [Counts, Decides, KeepsTensors, KeepsModule])
def test_what_a_callback_inside_the_step_keeps(kind):
    callbacks = []

    def make():
        callbacks.append(kind())
        return [callbacks[-1]]

    plain, sink = both(Net, loader, strategy("traced"), callbacks=make, max_epochs=2)
    assert_parity(plain, sink)
    first, second = callbacks
    assert first.steps == second.steps
    torch.testing.assert_close(first.largest, second.largest)
    if kind is KeepsModule:
        torch.testing.assert_close(first.average.weight, second.average.weight)
    warned = [text for text in sink.warned if "runs eagerly" in text]
    assert not warned or (kind is Decides and not positions.KNOWN)  # before Python 3.11


class Weighs(StepCallback):
    """Multiplies the gradient of one parameter, in each epoch by another number."""

    def __init__(self, weights, number):
        self.weights, self.number, self.weight = weights, number, weights[0]

    def on_train_epoch_start(self, trainer, pl_module):
        self.weight = self.weights[trainer.current_epoch]

    def on_after_backward(self, trainer, pl_module):
        [*pl_module.parameters()][self.number].grad.mul_(self.weight)


@pytest.mark.parametrize("others", [[0.5, 0.6, 0.6, 0.1, 0.6, 0.2], [0.5] * 6])
def test_two_callbacks_of_one_class_are_two(others):
    shared = [0.5, 0.6, 0.6, 0.6, 0.3, 0.9]

    def callbacks():
        return [Weighs(shared, 0), Weighs([next((n for n in shared if n == x), x) for x in others], 1)]

    plain, sink = both(Net, loader, strategy("traced"), callbacks=callbacks, max_epochs=6)
    assert_parity(plain, sink)


class Decays(StepCallback):
    """Changes the weights after every step."""

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        with torch.no_grad():
            batch[0].mul_(0.5)

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        with torch.no_grad():
            pl_module.net[0].weight.mul_(0.99)
        pl_module.log("norm", pl_module.net[0].weight.norm())


class DecaysOnce(L.Callback):
    on_train_batch_end = Decays.on_train_batch_end


@ENGINES
@pytest.mark.parametrize("size", [1, 4, -1])
def test_a_step_callback_takes_part_in_every_step(size, engine):
    plain, sink = both(Net, loader, strategy(engine, size), callbacks=lambda: [Decays()], max_epochs=2)
    assert_parity(plain, sink, exact=engine == "eager")
    said = [text for text in sink.warned if "runs eagerly" in text]
    if size == 1 and engine == "traced":  # this suite's own callback stands before it
        assert "has its turn behind that of callbacks which see every step" in said[0]
    else:
        assert not said
        assert sink.engine == engine


class Total(StepCallback):
    """Counts steps in a tensor."""

    def __init__(self):
        self.steps = torch.zeros(())

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.steps.add_(1)


@ENGINES
@pytest.mark.parametrize("size", [3, 1, -1])
def test_a_step_callback_is_called_once_in_a_sink_of_one_step_among_longer_ones(size, engine):
    kept = []

    def callbacks():
        kept.append(Total())
        return [kept[-1]]

    both(Net, lambda: loader(7, last=8), strategy(engine, size), callbacks=callbacks, max_epochs=6)
    assert [float(callback.steps) for callback in kept] == [42, 42]


class Averages(StepCallback):
    """Keeps an average in the module, and counts."""

    def __init__(self):
        self.steps = 0

    def state_dict(self):
        return {"steps": self.steps}

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.steps += 1
        pl_module.average.mul_(0.9).add_(pl_module.net[4].bias.detach(), alpha=0.1)
        self.log("averaged", pl_module.average[0], on_step=True, on_epoch=False)


class SeesAverages(L.Callback):
    def __init__(self):
        self.seen = {}

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        averaged = trainer.callback_metrics.get("averaged", torch.zeros(()))
        self.seen[trainer.global_step] = pl_module.average.clone(), averaged.clone()


class Averaged(Net):
    def __init__(self):
        super().__init__()
        self.register_buffer("average", torch.zeros(3))


@pytest.mark.narrow(11)
@ENGINES
@pytest.mark.parametrize("size", [4, -1])
@pytest.mark.parametrize("first", [True, False])
def test_others_see_what_a_step_callback_did_where_their_turn_is_behind_it(first, size, engine, tmp_path):
    saved, saw = [], []
    for number, by in enumerate(("auto", strategy(engine, size))):
        sees, folder = SeesAverages(), tmp_path / str(number)
        saves = ModelCheckpoint(folder, every_n_train_steps=5, save_top_k=-1, filename="{step}")
        ordered = [Averages(), sees] if first else [sees, Averages()]
        callbacks = [*ordered, saves]
        once(Averaged, loader, by, callbacks=callbacks.copy, max_epochs=2, enable_checkpointing=True)
        found = [torch.load(file, weights_only=False) for file in sorted(folder.iterdir())]
        saved.append([(each["callbacks"]["Averages"]["steps"], each["state_dict"]["average"]) for each in found])
        saw.append(sees.seen)
    assert len(saved[0]) == 6
    for (steps, expected), (found_steps, found) in zip(*saved, strict=True):
        assert steps == found_steps
        torch.testing.assert_close(expected, found, rtol=1e-4, atol=1e-6)
    plain, sink = saw
    assert {5, 10, 15} <= set(sink) <= set(plain)
    for step, (average, logged) in sink.items():
        torch.testing.assert_close(plain[step][0], average, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(plain[step][1], logged, rtol=1e-4, atol=1e-6)


class Begins(StepCallback):
    """Averages where steps begin, counts, and sets the rate."""

    def __init__(self):
        self.steps = 0

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.steps += 1
        pl_module.average.mul_(0.9).add_(pl_module.net[4].bias.detach(), alpha=0.1)
        trainer.optimizers[0].param_groups[0]["lr"] = 0.01 / (1 + batch_idx)


class SeesBegun(L.Callback):
    def __init__(self):
        self.seen = {}

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        steps = next(item.steps for item in trainer.callbacks if isinstance(item, Begins))
        rate = trainer.optimizers[0].param_groups[0]["lr"]
        self.seen[trainer.global_step] = pl_module.average.clone(), torch.tensor([steps, rate])


class SeesEveryStart(SeesBegun, EMAWeightAveraging):
    def __init__(self):
        EMAWeightAveraging.__init__(self)
        self.seen = {}


@pytest.mark.narrow(11)
@ENGINES
@pytest.mark.parametrize("size", [4, -1])
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("make", [SeesBegun, SeesEveryStart])
def test_where_steps_begin_callbacks_have_their_turns_too(make, first, size, engine):
    looks, runs = [], []
    for by in ("auto", strategy(engine, size)):
        sees, rates = make(), LearningRateMonitor("step")
        looks.append(sees)
        callbacks = [Begins(), sees, rates] if first else [rates, sees, Begins()]
        runs.append(once(Averaged, loader, by, callbacks=callbacks.copy, max_epochs=2, log_every_n_steps=3))
    plain, sink = runs
    assert_parity(plain, sink, exact=engine == "eager")
    expected, found = (each.seen for each in looks)
    every = make is SeesEveryStart
    assert len(found) == (len(expected) if every else 10 if size == 4 else 2)
    for step, seen in found.items():
        for known, value in zip(expected[step], seen, strict=True):
            torch.testing.assert_close(known, value, rtol=1e-4, atol=1e-6)
    rates = [[row["lr-SGD"] for _, row in run.rows if "lr-SGD" in row] for run in runs]
    assert len(rates[0]) > 5
    assert rates[0] == pytest.approx(rates[1])
    if engine == "traced":
        met = first and every
        assert len([text for text in sink.warned if "its turn before that of callbacks" in text]) == met
        assert sink.engine == ("eager" if met else "traced")


@pytest.mark.parametrize(("size", "every"), [(1, 50), (4, 1)])
def test_a_start_that_every_step_is_met_at_is_told_of(size, every):
    callbacks = lambda: [Begins(), LearningRateMonitor("step")]  # noqa: E731
    options = {"callbacks": callbacks, "log_every_n_steps": every, "max_epochs": 1}
    _, sink = both(Averaged, loader, strategy("traced", size), **options)
    said = next(text for text in sink.warned if "runs eagerly" in text)
    assert "`Begins.on_train_batch_start` has its turn before that of callbacks which see every step" in said
    assert "put it behind them in the Trainer's `callbacks`" in said


def test_control_a_callback_that_changes_weights_once_a_sink_is_told():
    plain, sink = both(Net, loader, strategy("traced"), callbacks=lambda: [DecaysOnce()], max_epochs=2)
    assert any("changes weights" in text and "StepCallback" in text for text in sink.warned)
    with pytest.raises(AssertionError):
        assert_parity(plain, sink)


class Unfreezes(L.Callback):
    def on_train_start(self, trainer, pl_module):
        pl_module.net[4].requires_grad_(False)

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if trainer.global_step == 5:
            pl_module.net[4].requires_grad_(True)


class UnfreezesInTheStep(Unfreezes, StepCallback):
    pass


class PrintsNow(L.Callback):
    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.loss = outputs["loss"] if (batch_idx + 1) % 3 == 0 else None


def test_of_several_that_act_at_some_batches_all_are_named():
    _, sink = both(Net, loader, strategy("traced"), callbacks=lambda: [PrintsNow(), ByAName()], max_epochs=1)
    names = "`PrintsNow.on_train_batch_end` and `ByAName.on_train_batch_end` decide by `batch_idx` or `global_step`"
    assert [text.startswith(names) for text in sink.warned if "decide" in text] == [True]


@pytest.mark.parametrize("make", [Unfreezes, PrintsNow])
def test_a_callback_that_acts_at_some_batches_only_is_told_of(make):
    plain, sink = both(Net, loader, strategy("traced"), callbacks=lambda: [make()], max_epochs=3)
    said = [text for text in sink.warned if "decides by `batch_idx` or `global_step`" in text]
    assert len(said) == 1
    assert said[0].startswith(f"`{make.__name__}.on_train_batch_")
    if make is Unfreezes:
        assert plain.module.net[4].weight.requires_grad
        assert not sink.module.net[4].weight.requires_grad  # as is said


class Tells(L.Callback):
    def on_train_batch_start(self, trainer, pl_module, batch, number):
        if number == 0:
            self.first = True

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, number):
        self.last = "last" if number + 1 == trainer.num_training_batches else ""
        if number is None or trainer.global_step:
            self.seen = True


class ByAName(L.Callback):
    def on_train_batch_end(self, trainer, pl_module, outputs, batch, number):
        step = trainer.global_step
        if step % 5 == 0:
            self.step = step


class ByItsNumber(L.Callback):
    def on_train_batch_start(self, trainer, pl_module, batch, number):
        if number == 7:
            self.number = number


def every_fifth(step, of=5):
    return step % of == 0


class ByAFunction(L.Callback):
    def on_train_batch_end(self, trainer, *args):
        if every_fifth(of=3, step=trainer.global_step):
            self.step = args


class ByAMethod(L.Callback):
    @torch.no_grad()
    def on_train_batch_start(self, trainer, pl_module, batch, number):
        self._act(batch, number)

    def _act(self, batch, index):
        if self.is_due(index):
            self.batch = batch

    @staticmethod
    def is_due(index):
        return index > 3


class TellsByMethods(L.Callback):
    def on_train_batch_end(self, trainer, pl_module, outputs, batch, number):
        self._note(number, trainer)
        self.log("number", float(number))

    def _note(self, number, trainer):
        self.last = f"{number} of {trainer.num_training_batches}"
        return self._note if number is None else None


OF_HOOKS = [(Tells, None), (ByAName, "end"), (ByItsNumber, "start"), (ByAFunction, "end"), (ByAMethod, "start")]


@pytest.mark.parametrize(("make", "hook"), [*OF_HOOKS, (TellsByMethods, None)])
def test_by_what_a_hook_decides_its_source_says(make, hook):
    for each in ("start", "end"):
        assert decides_by_counts(make(), f"on_train_batch_{each}") == (each == hook)


class SeesStarts(EMAWeightAveraging):
    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        trainer.optimizers[0].param_groups[0]["lr"] = 0.1 / (1 + batch_idx)


class LooksAtAverages(L.Callback):
    def __init__(self):
        self.seen = {}

    def on_train_batch_end(self, trainer, pl_module, *args):
        average = next(item for item in trainer.callbacks if isinstance(item, SeesStarts))
        weight = average._average_model.module.net[0].weight
        self.seen[trainer.global_step] = weight.detach().clone()


@ENGINES
def test_one_that_is_shown_each_batch_is_shown_its_start_and_has_its_turn(engine):
    looks = [LooksAtAverages(), LooksAtAverages()]
    waiting = looks.copy()
    make = lambda: [waiting.pop(0), SeesStarts()]  # noqa: E731
    plain, sink = both(Net, loader, strategy(engine, 4), callbacks=make, max_epochs=2)
    assert_parity(plain, sink, exact=engine == "eager")
    expected, found = (each.seen for each in looks)
    assert 8 in found
    for step, weight in found.items():
        torch.testing.assert_close(expected[step], weight, rtol=1e-4, atol=1e-6)


@dataclass
class Scales(StepCallback):
    """Is equal to another one, if that can be said at all."""

    factor: torch.Tensor

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        pl_module.net[4].bias.data.mul_(self.factor)


@ENGINES
def test_callbacks_are_told_apart_by_what_they_are(engine):
    make = lambda: [Scales(torch.full((3,), 0.9)), SeesAverages(), Scales(torch.full((3,), 0.9))]  # noqa: E731
    plain, sink = both(Averaged, loader, strategy(engine, 4), callbacks=make, max_epochs=2)
    assert_parity(plain, sink, exact=engine == "eager")


@pytest.mark.parametrize(("make", "size"), [(UnfreezesInTheStep, 4), (Unfreezes, 1)])
def test_one_that_sees_every_batch_is_not(make, size):
    plain, sink = both(Net, loader, strategy("traced", size), callbacks=lambda: [make()], max_epochs=3)
    assert not any("decides by" in text for text in sink.warned)
    assert_parity(plain, sink)
    assert sink.module.net[4].weight.requires_grad


class Spikes(SpikeDetection):
    def __init__(self):
        super().__init__(mode="max", warmup=2, atol=0.0)
        self.seen = []

    def _handle_spike(self, *args):
        pass

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.seen.append((batch_idx, float(outputs["loss"]), trainer.global_step))
        super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)


class Average(WeightAveraging):
    def __init__(self):
        super().__init__(avg_fn=lambda average, current, count: average * 0.9 + current * 0.1)
        self.weights = []

    def on_train_epoch_end(self, trainer, pl_module):
        self.weights.append([p.detach().clone() for p in self._average_model.parameters()])
        super().on_train_epoch_end(trainer, pl_module)


@pytest.mark.narrow(11)
@ENGINES
@pytest.mark.parametrize("size", [4, -1])
@pytest.mark.parametrize("kind", [Spikes, Average])
def test_callbacks_that_are_wrong_unless_they_see_every_step_see_it(kind, size, engine):
    callbacks = []

    def make():
        callbacks.append(kind())
        return [callbacks[-1]]

    plain, sink = both(Net, loader, strategy(engine, size), callbacks=make, max_epochs=2, validation=loader(2))
    assert_parity(plain, sink, exact=engine == "eager")
    assert sink.engine == engine
    first, second = callbacks
    if kind is Spikes:
        assert [(a, c) for a, _, c in first.seen] == [(a, c) for a, _, c in second.seen]
        assert [b for _, b, _ in first.seen] == pytest.approx([b for _, b, _ in second.seen], rel=1e-4)
        assert len(second.seen) == 34
    else:
        assert len(first.weights) == len(second.weights) == 2
        for expected, found in zip(first.weights, second.weights, strict=True):
            torch.testing.assert_close(expected, found, rtol=1e-3, atol=1e-5)


def test_throughput_is_measured_over_every_step():
    monitors = []

    def make():
        monitors.append(ThroughputMonitor(lambda batch: len(batch[0])))
        return [monitors[-1]]

    both(Net, loader, strategy("traced"), callbacks=make, max_epochs=2)
    plain, sink = ({stage.value: counts for stage, counts in item._samples.items()} for item in monitors)
    assert plain == sink
    assert sink["train"] == 2 * (16 * 8 + 3)


def test_the_fallback_can_be_an_error_that_says_the_same():
    with pytest.raises(CompileError, match="a value of a tensor decides"):
        train(Net(), loader(), SinkStrategy(engine="traced", fallback="error"), callbacks=[Looks()], max_epochs=1)


class Notes(L.Callback):
    """Logs from the batch hooks."""

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.log("started", float(batch_idx), on_step=True, on_epoch=False)

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        pl_module.log("ended", outputs["loss"].detach(), on_step=True, on_epoch=False)


@ENGINES
def test_a_callback_that_logs(engine):
    # Epochs and sinks that end where rows are due: the callback's hooks are called there and nowhere else.
    plain, sink = both(Net, lambda: loader(15), strategy(engine, 3), callbacks=lambda: [Notes()], max_epochs=2)
    by_step = {step: row for step, row in plain.rows if "ended" in row}
    rows = [(step, row) for step, row in sink.rows if "ended" in row]
    assert [step for step, _ in rows] == [step for step, row in plain.rows if "ended" in row]
    for step, row in rows:
        assert row["ended"] == pytest.approx(by_step[step]["ended"], rel=1e-4)
    assert sink.trainer.callback_metrics["ended"] == pytest.approx(
        float(plain.trainer.callback_metrics["ended"]), rel=1e-4
    )


class Drops(L.Callback):
    """Changes hyperparameters where a sink ends."""

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if batch_idx % 4 == 3:
            for group in trainer.optimizers[0].param_groups:
                group["lr"] *= 0.5
                group["weight_decay"] = 0.1
            pl_module.net[3].p = 0.4


@ENGINES
def test_a_callback_that_changes_hyperparameters(engine):
    plain, sink = both(Net, lambda: loader(16), strategy(engine, 4), callbacks=lambda: [Drops()], max_epochs=3)
    assert_parity(plain, sink, exact=engine == "eager")
    assert sink.engine == engine


def test_hooks_are_called_with_the_first_and_the_last_batch():
    seen = []

    class Batches(L.Callback):
        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            seen.append(("start", batch_idx, batch[0].sum().item()))

        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            seen.append(("end", batch_idx, batch[0].sum().item()))

    train(Net(), loader(), strategy("traced", 6), callbacks=[Batches()], max_epochs=1)
    sums = [x.sum().item() for x, _ in loader()]
    bounds = [(0, 5), (6, 11), (12, 16)]
    assert seen == [
        event for first, last in bounds for event in (("start", first, sums[first]), ("end", last, sums[last]))
    ]
