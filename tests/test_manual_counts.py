"""Manual optimization counts as plain Lightning counts: by optimizer steps, wherever a sink may end."""

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from gallery.manual import (
    AccumulatesByHand,
    ARawOptimizer,
    Manual,
    OneOptimizer,
    StepsAsOftenAsTheBatchSays,
    StepsThreeTimesInABatch,
)
from gallery.several import OneOfTwoAtEveryOtherBatch, Several, ThreeOptimizers
from lightning_sink import SinkStrategy
from parity import assert_parity, both, loader, train

KINDS = [OneOptimizer, Several, ThreeOptimizers, StepsThreeTimesInABatch, OneOfTwoAtEveryOtherBatch]
KINDS += [StepsAsOftenAsTheBatchSays, AccumulatesByHand]
SIZES = pytest.mark.parametrize("size", [-1, 1, 5])
ENGINES = pytest.mark.parametrize("engine", ["eager", "traced"])
WAYS = pytest.mark.parametrize(("size", "engine"), [(-1, "eager"), (1, "eager"), (5, "eager"), (-1, "traced")])


def runs(kind, size, engine="eager", callbacks=list, **options):
    strategy = SinkStrategy(size, epoch="dataset", engine=engine)
    plain, sink = both(kind, loader, strategy, callbacks=callbacks, **{"max_epochs": 2, **options})
    assert_parity(plain, sink, exact=engine == "eager")
    progress = [run.trainer.fit_loop.state_dict() for run in (plain, sink)]
    assert progress[0] == progress[1]
    return plain, sink


@pytest.mark.narrow(13)
@ENGINES
@SIZES
@pytest.mark.parametrize("kind", KINDS)
def test_the_counters_at_the_end(kind, size, engine):
    plain, _ = runs(kind, size, engine)
    assert plain.trainer.fit_loop.epoch_loop.manual_optimization.optim_step_progress.total.completed > 0


@pytest.mark.narrow(11)
@pytest.mark.parametrize("steps", [2, 7, 13])
@WAYS
@pytest.mark.parametrize("kind", KINDS)
def test_max_steps_ends_at_plain_lightnings_batch(kind, size, steps, engine):
    plain, sink = runs(kind, size, engine, max_steps=steps, max_epochs=3)
    assert plain.events.ends[-1] == sink.events.ends[-1]


class Accumulates(L.Callback):
    """Has Lightning believe that gradients are accumulated, which it refuses where a training begins."""

    def on_train_epoch_start(self, trainer, pl_module):
        trainer.accumulate_grad_batches = 1 + trainer.current_epoch


@pytest.mark.parametrize("every", [1, 3])
def test_steps_by_hand_have_rows_whatever_lightning_believes_to_accumulate(every):
    runs(OneOptimizer, -1, "traced", lambda: [Accumulates()], max_epochs=4, log_every_n_steps=every)


@SIZES
def test_max_steps_means_nothing_where_nothing_is_counted(size):
    plain, _ = runs(ARawOptimizer, size, max_steps=5)
    assert plain.trainer.global_step == 0


@pytest.mark.narrow(11)
@SIZES
@pytest.mark.parametrize("kind", KINDS)
def test_min_steps(kind, size):
    runs(kind, size, min_steps=20, max_epochs=1)


class Saved(ModelCheckpoint):
    """Writes down when it saves, and what."""

    def __init__(self, every, folder="kept", **options):
        super().__init__(folder, every_n_train_steps=every, save_top_k=-1, **options)
        self.saved = []

    def _save_checkpoint(self, trainer, filepath):
        batch = trainer.fit_loop.epoch_loop.batch_progress.total.ready
        weights = [parameter.detach().clone() for parameter in trainer.lightning_module.parameters()]
        self.saved.append((trainer.global_step, batch, sum(float(weight.double().sum()) for weight in weights)))
        super()._save_checkpoint(trainer, filepath)


@pytest.mark.narrow(13)
@pytest.mark.filterwarnings("ignore:Checkpoint directory")
@pytest.mark.parametrize("every", [2, 3])
@WAYS
@pytest.mark.parametrize("kind", KINDS)
def test_checkpoints_are_saved_at_plain_lightnings_batches(kind, size, every, engine):
    kept = []

    def callbacks():
        kept.append(Saved(every, filename=f"{len(kept)}-" + "{step}"))
        return [kept[-1]]

    runs(kind, size, engine, callbacks=callbacks, enable_checkpointing=True)
    assert kept[0].saved
    plain, sink = ([(step, batch, pytest.approx(weights)) for step, batch, weights in run.saved] for run in kept)
    assert kept[0].saved == kept[1].saved if engine == "eager" else plain == sink


class LogsWhereItIs(AccumulatesByHand):
    def training_step(self, batch, batch_idx):
        self.log("place", float(batch_idx % 4 == 1))
        super().training_step(batch, batch_idx)


@pytest.mark.filterwarnings("ignore:Checkpoint directory")
@WAYS
def test_a_metric_that_decides_is_asked_at_batches_that_make_no_step(size, engine):
    kept = []

    def callbacks():
        kept.append(ModelCheckpoint(f"kept-{len(kept)}", monitor="place", mode="max", every_n_train_steps=2))
        return [kept[-1]]

    runs(LogsWhereItIs, size, engine, callbacks=callbacks, enable_checkpointing=True)
    assert [float(run.best_model_score) for run in kept] == [1.0, 1.0]


@pytest.mark.parametrize("options", [{"max_steps": 30}, {"callbacks": lambda: [Saved(15)]}], ids=["max_steps", "saves"])
@pytest.mark.filterwarnings("ignore:Checkpoint directory")
def test_steps_run_in_rows_up_to_one_that_is_awaited(options, chunks):
    runs(OneOptimizer, -1, "traced", enable_checkpointing="callbacks" in options, **options)
    assert max(chunks, default=0) > 8


class Validated(Several):
    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.loss(batch))


class Validations(L.Callback):
    def __init__(self):
        self.at = []

    def on_validation_start(self, trainer, pl_module):
        self.at.append((trainer.global_step, trainer.fit_loop.batch_idx, trainer.sanity_checking))


@SIZES
@pytest.mark.parametrize(
    "options", [{"val_check_interval": 5}, {"val_check_interval": 0.25}, {"max_steps": 11}], ids=str
)
def test_validation_counts_batches(size, options):
    kept = []

    def callbacks():
        kept.append(Validations())
        return [kept[-1]]

    runs(Validated, size, callbacks=callbacks, validation=loader(2), **options)
    assert kept[0].at == kept[1].at


@pytest.mark.narrow(11)
@pytest.mark.parametrize("every", [1, 2, 5])
@SIZES
def test_rows_have_plain_lightnings_steps(size, every):
    runs(Several, size, log_every_n_steps=every)


class Stops(Manual):
    def training_step(self, batch, batch_idx):
        super().training_step(batch, batch_idx)
        if self.global_step >= 9:
            self.trainer.should_stop = True


@SIZES
def test_the_step_stops_the_training(size):
    plain, _ = runs(Stops, size, max_epochs=3)
    assert plain.trainer.global_step == 9


@pytest.mark.parametrize("first", ["plain", "sink"])
@pytest.mark.parametrize("kind", [Several, StepsThreeTimesInABatch])
def test_resuming_with_the_other(kind, first, tmp_path):
    def strategy(name):
        return "auto" if name == "plain" else SinkStrategy(4, epoch="dataset", engine="eager")

    second = "sink" if first == "plain" else "plain"
    before = train(kind(), loader(), strategy(first), max_epochs=1)
    before.trainer.save_checkpoint(tmp_path / "one.ckpt")
    after = train(kind(), loader(), strategy(second), max_epochs=2, checkpoint=tmp_path / "one.ckpt")
    same = train(kind(), loader(), strategy(first), max_epochs=2, checkpoint=tmp_path / "one.ckpt")
    assert_parity(*((same, after) if first == "plain" else (after, same)), exact=True)


@pytest.mark.parametrize("size", [4, 5])
def test_an_endless_traversal(size):
    plain, sink = both(Several, loader, SinkStrategy(size, engine="eager"), max_epochs=6, max_steps=17)
    assert_parity(plain, sink, exact=True)


class CountsBehind(OneOptimizer):
    """Counts in its own hook at a batch's end, which comes behind the callbacks'."""

    def __init__(self):
        super().__init__()
        self.register_buffer("ended", torch.zeros(()))

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.ended += 1


@pytest.mark.filterwarnings("ignore:Checkpoint directory")
@ENGINES
def test_checkpoints_are_saved_before_the_modules_own_hook(engine):
    kept = []

    class Ended(Saved):
        def _save_checkpoint(self, trainer, filepath):
            self.saved.append((trainer.global_step, float(trainer.lightning_module.ended)))

    def callbacks():
        kept.append(Ended(5))
        return [kept[-1]]

    runs(CountsBehind, -1, engine, callbacks=callbacks, enable_checkpointing=True)
    assert kept[0].saved == kept[1].saved == [(step, step - 1.0) for step in range(5, 35, 5)]
