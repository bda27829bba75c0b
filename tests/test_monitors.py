"""LossMonitor, TimeMonitor, and what they read: a sink's history and its report."""

import math
import re
import threading

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from lightning_sink import LossMonitor, SinkDataModule, SinkReport, SinkStrategy, TimeMonitor
from parity import Net, loader, train

ENGINES = pytest.mark.parametrize("engine", ["eager", "traced"])


class Offsets(IterableDataset):
    """Batches of which each adds a number to its loss; None in place of a batch where that is None."""

    def __init__(self, offsets):
        generator = torch.Generator().manual_seed(1)
        self.offsets = offsets
        self.batches = [torch.randn(4, 6, generator=generator) for _ in offsets]

    def __len__(self):
        return len(self.offsets)

    def __iter__(self):
        for x, offset in zip(self.batches, self.offsets, strict=True):
            yield None if offset is None else (x, torch.tensor(offset))


def data(offsets):
    return DataLoader(Offsets(offsets), batch_size=None)


class Offset(L.LightningModule):
    """Its loss is what the batch says, and its gradients are not."""

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(6, 1)

    def training_step(self, batch, batch_idx):
        x, offset = batch
        return self.net(x).square().mean() + offset

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def net():
    torch.manual_seed(0)
    return Net()


def lines(capsys):
    return [line for line in capsys.readouterr().out.splitlines() if line.startswith("epoch: ")]


def losses(found):
    pairs = (re.fullmatch(r"epoch: (\d+) step: (\d+), loss is (\S+)", line) for line in found)
    return {(int(match[1]), int(match[2])): float(match[3]) for match in pairs if match}


# -- the loss ----------------------------------------------------------------------------------------------------------


@ENGINES
@pytest.mark.parametrize("options", [{}, {"accumulate_grad_batches": 4}, {"accumulate_grad_batches": 3}])
def test_a_line_per_sink_has_the_loss_of_plain_lightning_at_its_step(engine, options, capsys):
    train(net(), loader(), callbacks=[LossMonitor()], max_epochs=2, **options)
    plain = losses(lines(capsys))
    assert list(plain) == [(epoch, step) for epoch in (1, 2) for step in range(1, 18)]
    strategy = SinkStrategy(5, epoch="dataset", engine=engine)
    train(net(), loader(), strategy, callbacks=[LossMonitor()], max_epochs=2, **options)
    found = losses(lines(capsys))
    assert list(found) == [(epoch, step) for epoch in (1, 2) for step in (5, 10, 15, 17)]
    assert found == pytest.approx({place: plain[place] for place in found}, rel=0 if engine == "eager" else 1e-4)


def test_the_loss_is_what_the_step_returned(capsys):
    """And not the part of it that Lightning takes where gradients accumulate."""

    class Constant(Offset):
        def training_step(self, batch, batch_idx):
            return super().training_step(batch, batch_idx) * 0 + 6.0

    for strategy in ("auto", SinkStrategy(engine="eager")):
        train(Constant(), data([0.0] * 4), strategy, callbacks=[LossMonitor()], max_epochs=1, accumulate_grad_batches=2)
        assert set(losses(lines(capsys)).values()) == {6.0}


@ENGINES
def test_an_epoch_is_a_sink_of_an_endless_traversal(engine, capsys):
    train(net(), loader(7), SinkStrategy(10, engine=engine), callbacks=[LossMonitor()], max_epochs=3)
    assert list(losses(lines(capsys))) == [(1, 10), (2, 10), (3, 10)]


@pytest.mark.parametrize(
    ("times", "expected"),
    [(0, []), (1, [5, 10, 15, 17]), (6, [10, 17]), (10, [10]), (17, [17]), (18, [])],
)
def test_lines_are_so_many_steps_apart_at_least(times, expected, capsys):
    strategy = SinkStrategy(5, epoch="dataset", engine="eager")
    train(net(), loader(), strategy, callbacks=[LossMonitor(times)], max_epochs=1)
    assert [step for _, step in losses(lines(capsys))] == expected


def test_steps_are_counted_across_epochs(capsys):
    train(net(), loader(), callbacks=[LossMonitor(10)], max_epochs=2)
    assert list(losses(lines(capsys))) == [(1, 10), (2, 3), (2, 13)]


def test_a_training_without_a_loss_says_so(capsys):
    class ByHand(Offset):
        automatic_optimization = False

        def training_step(self, batch, batch_idx):
            return None

    train(ByHand(), data([0.0] * 4), SinkStrategy(2, engine="eager"), callbacks=[LossMonitor()], max_epochs=1)
    assert lines(capsys) == ["epoch: 1 step: 2, the step gave no loss"]


# -- NaN and infinity --------------------------------------------------------------------------------------------------

NAN, INF = math.nan, math.inf


@pytest.mark.narrow(11)
@ENGINES
@pytest.mark.parametrize("size", [1, 4, 7, -1])
@pytest.mark.parametrize(
    ("offsets", "begins"),
    [
        ([0.0] * 12, []),
        ([0.0] * 5 + [NAN] + [0.0] * 6, ["step: 6, loss is nan"]),
        ([0.0] * 5 + [INF] * 7, ["step: 6, loss is inf"]),
        ([NAN] * 12, ["step: 1, loss is nan"]),
        ([0.0, 0.0, -INF, *[0.0] * 8, NAN], ["step: 3, loss is -inf", "step: 12, loss is nan"]),
        ([0.0, 0.0, NAN, NAN, 0.0, 0.0, NAN, *[0.0] * 5], ["step: 3, loss is nan", "step: 7, loss is nan"]),
        ([0.0, None, 0.0, NAN, None, NAN, *[NAN] * 6], ["step: 4, loss is nan"]),
    ],
    ids=["none", "one", "from one on", "all", "two", "again in the next sink", "beside batches of None"],
)
@pytest.mark.filterwarnings("ignore:train_dataloader yielded None")
def test_where_the_loss_is_no_number_is_said(offsets, begins, size, engine, capsys):
    sinks = {(int(text.split()[1].rstrip(",")) - 1) // size if size > 0 else 0: text for text in reversed(begins)}
    begins = [sinks[number] for number in sorted(sinks)]  # the first of each sink
    strategy = SinkStrategy(size, epoch="dataset", engine=engine)
    train(Offset(), data(offsets), strategy, callbacks=[LossMonitor(0)], max_epochs=1)
    assert lines(capsys) == [f"epoch: 1 {text}: the first that is not finite" for text in begins]


def test_without_sinks_it_is_said_too(capsys):
    train(Offset(), data([0.0, NAN, NAN, 0.0, INF]), callbacks=[LossMonitor(0)], max_epochs=1)
    assert [line.split(":")[2] for line in lines(capsys)] == [" 2, loss is nan", " 5, loss is inf"]


@ENGINES
def test_a_step_that_returns_nothing_is_not_nan(engine, capsys):
    class Skips(Offset):
        def training_step(self, batch, batch_idx):
            return None if batch_idx % 2 else super().training_step(batch, batch_idx)

    strategy = SinkStrategy(4, epoch="dataset", engine=engine)
    run = train(Skips(), data([0.0] * 12), strategy, callbacks=[LossMonitor()], max_epochs=1)
    assert lines(capsys) == [f"epoch: 1 step: {step}, the step gave no loss" for step in (4, 8, 12)]
    assert run.trainer.strategy.history["loss"].isnan().tolist() == [False, True, False, True]
    assert run.trainer.strategy.sink_report().invalid_from == ()


@ENGINES
def test_the_training_may_stop_there(engine, capsys):
    offsets = [0.0] * 5 + [NAN] + [0.0] * 18
    strategy = SinkStrategy(4, epoch="dataset", engine=engine)
    run = train(Offset(), data(offsets), strategy, callbacks=[LossMonitor(0, stop_on_invalid=True)], max_epochs=3)
    assert lines(capsys) == [
        "epoch: 1 step: 6, loss is nan: the first that is not finite; `trainer.should_stop` is set"
    ]
    assert run.trainer.global_step == 8  # the end of that sink
    run = train(Offset(), data(offsets), callbacks=[LossMonitor(0, stop_on_invalid=True)], max_epochs=3)
    assert run.trainer.global_step == 6


@ENGINES
def test_a_loss_that_is_several_numbers_is_none(engine, capsys):
    class Several(Offset):
        automatic_optimization = False

        def training_step(self, batch, batch_idx):
            each = self.net(batch[0]).square().squeeze(1) + batch[1]
            self.optimizers().zero_grad()
            self.manual_backward(each.mean())
            self.optimizers().step()
            return {"loss": each.detach()}

    strategy = SinkStrategy(4, epoch="dataset", engine=engine)
    run = train(Several(), data([0.0, NAN] + [0.0] * 6), strategy, callbacks=[LossMonitor()], max_epochs=1)
    assert lines(capsys) == [f"epoch: 1 step: {step}, the step gave no loss" for step in (4, 8)]
    assert run.trainer.strategy.history["loss"].isnan().tolist() == [True] * 4


def test_a_loss_too_large_for_another_steps_type_is_finite(capsys):
    class Halves(Offset):
        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            return loss.half() if batch_idx == 0 else loss + 1e6

    run = train(Halves(), data([0.0] * 4), SinkStrategy(engine="eager"), callbacks=[LossMonitor(0)], max_epochs=1)
    assert lines(capsys) == []
    assert run.trainer.strategy.history["loss"].dtype == torch.float32


# -- the time ----------------------------------------------------------------------------------------------------------

TIME = r"epoch: (\d+) step: (\d+), (sink|epoch) time: (\d+\.\d{3}) ms, per step time: (\d+\.\d{3}) ms, (\d+) items/s"


@ENGINES
def test_a_line_per_sink_has_its_time(engine, capsys):
    strategy = SinkStrategy(5, epoch="dataset", engine=engine)
    reports = []

    class Reports(L.Callback):
        def on_train_batch_end(self, trainer, *rest):
            reports.append(trainer.strategy.sink_report())

    run = train(net(), loader(), strategy, callbacks=[TimeMonitor(), Reports()], max_epochs=1)
    matches = [re.fullmatch(TIME, line) for line in lines(capsys)]
    assert [match.group(1, 2, 3) for match in matches] == [("1", str(step), "sink") for step in (5, 10, 15, 17)]
    assert [(report.batches, report.items) for report in reports] == [(5, 40), (5, 40), (5, 40), (2, 8 + 3)]
    for match, report in zip(matches, reports, strict=True):
        whole, step, speed = map(float, match.group(4, 5, 6))
        assert step == pytest.approx(whole / report.batches, abs=1e-3)
        assert speed == pytest.approx(report.items / whole * 1e3, rel=0.01, abs=1)
        assert 0 < report.data_seconds < report.seconds
    last = run.trainer.strategy.sink_report()
    assert (last.batches, last.items) == (2, 11)
    assert last == run.trainer.strategy.sink_report()  # its time stands still


def test_without_sinks_a_line_per_epoch(capsys):
    train(net(), loader(), validation=loader(3), callbacks=[TimeMonitor(data_time=True)], max_epochs=2)
    matches = [re.fullmatch(TIME, line) for line in lines(capsys)]
    assert [match.group(1, 2, 3) for match in matches] == [("1", "17", "epoch"), ("2", "17", "epoch")]


@pytest.mark.parametrize("strategy", ["auto", SinkStrategy(4, epoch="dataset", engine="eager")], ids=["plain", "sinks"])
def test_steps_are_counted_from_the_epochs_begin_where_it_goes_on(strategy, capsys, tmp_path):
    kept = ModelCheckpoint(tmp_path, every_n_train_steps=6, save_top_k=-1, filename="{step}")
    train(net(), loader(), callbacks=[kept], max_epochs=1, enable_checkpointing=True)
    lines(capsys)
    monitors = [LossMonitor(), TimeMonitor()]
    train(net(), loader(), strategy, callbacks=monitors, max_epochs=1, checkpoint=tmp_path / "step=6.ckpt")
    found = lines(capsys)
    steps = [*range(7, 18)] if strategy == "auto" else [10, 14, 17]
    assert [step for _, step in losses(found)] == steps
    times = [int(match[2]) for match in (re.fullmatch(TIME, line) for line in found) if match]
    assert times == ([17] if strategy == "auto" else steps)


@pytest.mark.parametrize("buffer_size", [0, 4])
def test_data_that_the_steps_wait_for_is_in_its_time(buffer_size, capsys):
    class Slow(Offsets):
        def __iter__(self):
            for batch in super().__iter__():
                pause.wait(0.02)
                yield batch

    pause = threading.Event()
    slow = SinkDataModule.from_loaders(DataLoader(Slow([0.0] * 5), batch_size=None), buffer_size=buffer_size)
    run = train(Offset(), slow, SinkStrategy(engine="eager"), callbacks=[TimeMonitor(data_time=True)], max_epochs=1)
    (line,) = lines(capsys)
    report = run.trainer.strategy.sink_report()
    assert 0.05 < report.data_seconds <= report.seconds
    assert f"data time: {float(line.split('data time: ')[1].split()[0]):.3f} ms" in line


def test_batches_without_tensors_have_no_items(capsys):
    class Nothing(Offset):
        def training_step(self, batch, batch_idx):
            return self.net.weight.square().sum()

    batches = DataLoader([{"name": "a"}] * 3, batch_size=None)
    train(Nothing(), batches, SinkStrategy(engine="eager"), callbacks=[TimeMonitor()], max_epochs=1)
    assert "items/s" not in lines(capsys)[0]


# -- what they read ----------------------------------------------------------------------------------------------------


@ENGINES
def test_callbacks_see_the_history_of_their_own_sink(engine):
    seen = []

    class Looks(L.Callback):
        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            seen.append(("start", batch_idx, len(trainer.strategy.history.get("loss", []))))

        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            history = trainer.strategy.history
            seen.append(("end", batch_idx, len(history["loss"])))
            assert torch.equal(history["loss"][-1], outputs["loss"])
            assert len(history["loss_forked"]) == len(history["loss"])
            assert history["loss_forked"].isfinite().all()

    train(net(), loader(), SinkStrategy(6, epoch="dataset", engine=engine), callbacks=[Looks()], max_epochs=1)
    assert seen == [("start", 0, 0), ("end", 5, 6), ("start", 6, 6), ("end", 11, 6), ("start", 12, 6), ("end", 16, 5)]


def test_before_the_first_sink_the_report_is_empty():
    assert SinkStrategy().sink_report() == SinkReport()
    assert "batches=0" in repr(SinkReport())


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: LossMonitor(-1), ValueError, r"LossMonitor\(per_print_times=\.\.\.\)` takes a number of steps, 0 for"),
        (lambda: LossMonitor(1.5), TypeError, r"got 1\.5"),
        (lambda: LossMonitor(stop_on_invalid=1), TypeError, r"takes True or False; got 1"),
        (lambda: TimeMonitor("yes"), TypeError, r"TimeMonitor\(data_time=\.\.\.\)` takes True or False; got 'yes'"),
    ],
)
def test_wrong_options_are_refused(make, error, text):
    with pytest.raises(error, match=text):
        make()


def test_their_texts_are_worth_reading():
    assert repr(LossMonitor(3)) == "LossMonitor(per_print_times=3, stop_on_invalid=False)"
    assert repr(TimeMonitor()) == "TimeMonitor(data_time=False)"
