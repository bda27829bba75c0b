"""What users watch a training by: a line of the loss, a line of the time, and bars that move within a sink.

The monitors are called once for a sink and read what it did from its history and its report; without sinks they do the
same for every batch, or every epoch.
"""

from __future__ import annotations

import math
import time
from typing import Any, cast

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import RichProgressBar, TQDMProgressBar
from torch import Tensor

from lightning_sink.checks import boolean, integer
from lightning_sink.data.batch import flatten
from lightning_sink.trainer.progress import SinkListener, SinkReport, default_bar, items_in, sink_report

_EVERY = 0.1
"""Seconds between two drawings of a bar within a sink."""


class LossMonitor(Callback):
    """Prints the loss of a sink's last step: `epoch: 1 step: 1000, loss is 0.2323482483625412`.

    Epochs and steps count from 1, steps within the epoch, in batches; the loss is what `training_step` returned, up to
    rounding where gradients accumulate. Where the loss becomes NaN or infinite, a line says at which step, the first of
    a sink at which it does, wherever in the sink that is. Without sinks there is a line for every batch.

    Args:
        per_print_times: Steps from one line to the next, at least; 0 prints no loss.
        stop_on_invalid: Whether to set `trainer.should_stop` after a sink in which a loss was NaN or infinite, which
            ends the training once `min_epochs` and `min_steps` allow it.

    Raises:
        ValueError: For a number of steps below 0.
        TypeError: For a value of another type.
    """

    def __init__(self, per_print_times: int = 1, *, stop_on_invalid: bool = False) -> None:
        super().__init__()
        accepted = "a number of steps, 0 for no line"
        self.per_print_times = integer("LossMonitor(per_print_times=...)", per_print_times, accepted, least=0)
        self.stop_on_invalid = boolean("LossMonitor(stop_on_invalid=...)", stop_on_invalid)
        self._printed = 0
        self._invalid = False

    def __repr__(self) -> str:
        return f"LossMonitor(per_print_times={self.per_print_times}, stop_on_invalid={self.stop_on_invalid})"

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Counts from here, also where a training goes on."""
        self._printed, self._invalid = _batches(trainer), False

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Says what became of the loss."""
        # Lightning divides it so that gradients add up to those of one large batch.
        scale = trainer.accumulate_grad_batches if pl_module.automatic_optimization else 1
        loss, place = _loss(outputs, scale), f"epoch: {trainer.current_epoch + 1} step: "
        report = sink_report(trainer)
        if report is None:
            losses = [math.nan if loss is None else loss]
            begins: tuple[int, ...] = () if loss is None or math.isfinite(loss) else (0,)
        else:
            losses, begins = trainer.strategy.history["loss"].tolist(), report.invalid_from  # type: ignore[attr-defined]
        first = self._first_invalid(losses, begins)
        if first is not None:
            stops = "; `trainer.should_stop` is set" if self.stop_on_invalid else ""
            step = batch_idx + 2 - len(losses) + first
            pl_module.print(f"{place}{step}, loss is {losses[first]}: the first that is not finite{stops}")
        if begins and self.stop_on_invalid:
            trainer.should_stop = True
        done = _batches(trainer)
        if self.per_print_times and done - self._printed >= self.per_print_times:
            self._printed = done
            text = "the step gave no loss" if loss is None else f"loss is {loss}"
            pl_module.print(f"{place}{batch_idx + 1}, {text}")

    def _first_invalid(self, losses: list[float], begins: tuple[int, ...]) -> int | None:
        """Returns where the loss first became what is no number; that it still is, as in the sink before, is no news.

        Args:
            losses: The losses of a sink; NaN where a step gave none, too.
            begins: Where they became NaN or infinite.
        """
        news = (start for start in begins if not self._invalid or any(map(math.isfinite, losses[:start])))
        first = next(news, None)
        recovered = any(map(math.isfinite, losses[begins[-1] :] if begins else losses))
        self._invalid = not recovered and (self._invalid or bool(begins))
        return first


class TimeMonitor(Callback):
    """Prints a sink's time, `epoch: 1 step: 1000, sink time: 35.902 ms, per step time: 0.036 ms, 891316 items/s`.

    An item is an entry of a batch's first tensor. Without sinks there is a line for each epoch.

    Args:
        data_time: Whether to add what faster data could save at most: the time in which batches were fetched or waited
            for, at most as much as no step ran. Only in sinks; without them `Trainer(profiler="simple")` has it, as
            `train_dataloader_next`.

    Raises:
        TypeError: For a value of another type.
    """

    def __init__(self, data_time: bool = False) -> None:
        super().__init__()
        self.data_time = boolean("TimeMonitor(data_time=...)", data_time)
        self._begin_epoch()

    def __repr__(self) -> str:
        return f"TimeMonitor(data_time={self.data_time})"

    def _begin_epoch(self) -> None:
        self._began = time.perf_counter()
        self._batches = self._items = self._last = 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """An epoch begins, or goes on."""
        self._begin_epoch()

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """An epoch begins."""
        self._begin_epoch()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Says how long the sink took."""
        report = sink_report(trainer)
        if report is not None:
            self._print(trainer, pl_module, batch_idx + 1, "sink", report)
            return
        self._batches, self._last = self._batches + 1, batch_idx + 1
        self._items += items_in(flatten(batch)[0])

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Says how long the epoch took where there are no sinks."""
        if self._batches:
            seconds = time.perf_counter() - self._began
            report = SinkReport(batches=self._batches, items=self._items, seconds=seconds)
            self._print(trainer, pl_module, self._last, "epoch", report)

    def _print(self, trainer: Trainer, module: LightningModule, step: int, what: str, report: SinkReport) -> None:
        parts = [
            f"epoch: {trainer.current_epoch + 1} step: {step}",
            f"{what} time: {report.seconds * 1e3:.3f} ms",
            f"per step time: {report.seconds * 1e3 / report.batches:.3f} ms",
        ]
        if report.items:
            parts.append(f"{report.items / report.seconds:.0f} items/s")
        if self.data_time and what == "sink":
            parts.append(f"data time: {report.data_seconds * 1e3:.3f} ms")
        module.print(", ".join(parts))


class SinkProgressBar(SinkListener, TQDMProgressBar):
    """Lightning's tqdm bar, which moves within a sink too: batches done, their speed of late, and the queue's depth.

    Arguments as for `TQDMProgressBar`. It is drawn ten times a second at most, from counters on the host.
    """

    _drawn = 0.0
    _resumes = False
    _metrics = _text = ""

    def init_train_tqdm(self) -> Any:
        """Returns the training's bar: its speed is that of late, not the mean since compiling began."""
        bar = super().init_train_tqdm()
        bar.smoothing, bar.mininterval, bar.miniters = 0.3, 0.0, 1
        bar.reset()
        return bar

    def on_train_start(self, *given: Any) -> None:
        """Makes the training's bar."""
        self._resumes = True
        super().on_train_start(*given)

    def on_sink_progress(self, trained: int, queued: int) -> None:
        """Draws the bar, now and then."""
        now, bar = time.monotonic(), self.train_progress_bar
        if bar.disable:
            return
        if self._resumes:  # what was trained before is no speed
            self._resumes = False
            bar.initial = bar.n = bar.last_print_n = trained
        if now - self._drawn < _EVERY:
            return
        self._drawn = now
        if bar.postfix != self._text:  # the metrics, as they were shown last
            self._metrics = bar.postfix or ""
        self._text = ", ".join(filter(None, (self._metrics, f"queue={queued}")))
        bar.set_postfix_str(self._text, refresh=False)
        bar.update(trained - bar.n)


class SinkRichProgressBar(SinkListener, RichProgressBar):
    """Lightning's rich bar, which moves within a sink too; as `SinkProgressBar`. Arguments as for `RichProgressBar`."""

    _drawn = 0.0
    _fresh = False

    def configure_columns(self, trainer: Trainer) -> list[Any]:
        """Returns Lightning's columns and one of the queue, for which the bar is shorter."""
        from rich.progress import BarColumn, ProgressColumn, Task
        from rich.text import Text

        class QueueColumn(ProgressColumn):
            def render(self, task: Task) -> Text:
                queued = task.fields.get("queued")
                return Text("" if queued is None else f"queue {queued}", style="dim")

        columns = super().configure_columns(trainer)
        for column in columns:
            if isinstance(column, BarColumn) and column.bar_width is not None:
                column.bar_width -= 10
        return [*columns, QueueColumn()]

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begins the epoch's bar."""
        self._fresh = True
        super().on_train_epoch_start(trainer, pl_module)

    def on_sink_progress(self, trained: int, queued: int) -> None:
        """Draws the bar, now and then, and once an epoch in any case: its speed is that between two drawings."""
        now = time.monotonic()
        if self.progress is None or self.is_disabled or (now - self._drawn < _EVERY and not (self._fresh and trained)):
            return
        if self.train_progress_bar_id is None:  # an epoch that goes on is not begun
            self.on_train_epoch_start(self.trainer, self.trainer.lightning_module)
        self._drawn, self._fresh = now, self._fresh and not trained
        self.progress.update(cast(Any, self.train_progress_bar_id), completed=trained, queued=queued)
        self.refresh()


def show_progress(trainer: Trainer) -> None:
    """Puts a bar that moves within sinks in the place of the one that Lightning chose by itself."""
    bar = default_bar(trainer)
    if bar is not None:
        callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
        moving = SinkRichProgressBar() if isinstance(bar, RichProgressBar) else SinkProgressBar()
        callbacks[callbacks.index(bar)] = moving


def _batches(trainer: Trainer) -> int:
    """Returns how many batches the training has trained."""
    return int(trainer.fit_loop.epoch_loop.total_batch_idx) + 1


def _loss(outputs: Any, scale: int) -> float | None:
    loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
    return float(loss) * scale if isinstance(loss, Tensor) and loss.numel() == 1 else None
