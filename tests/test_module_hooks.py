"""Hooks of the LightningModule and steps of every kind, as users write them: trained as plain Lightning does."""

import copy

import lightning as L
import pytest
import torch
from torch import nn

import positions
from lightning_sink import SinkStrategy
from lightning_sink.engine.tracing.record import Recorder
from parity import QUIET, Net, assert_parity, assert_tensors, compare, loader

ENGINES = pytest.mark.parametrize("engine", ["eager", "traced"])
WAYS = pytest.mark.parametrize(("engine", "accumulate"), [("eager", 2), ("traced", 1), ("traced", 2)])


def short():
    return loader(9)


class BatchStart(Net):
    def on_train_batch_start(self, batch, batch_idx):
        with torch.no_grad():
            self.net[0].weight.mul_(0.99)


class BatchEnd(Net):
    def on_train_batch_end(self, outputs, batch, batch_idx):
        with torch.no_grad():
            self.net[0].weight.clamp_(-0.3, 0.3)
            self.net[4].bias.add_(outputs["loss"] * 0.01)


class BeforeZeroGrad(Net):
    def on_before_zero_grad(self, optimizer):
        # Between forward and backward: only what the backward pass does not read may be written.
        with torch.no_grad():
            self.net[4].bias.mul_(0.9)


class BeforeBackward(Net):
    def on_before_backward(self, loss):
        with torch.no_grad():
            self.net[4].bias.add_(loss.detach() * 0.01)


class AfterBackward(Net):
    def on_after_backward(self):
        for parameter in self.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(0.5)


class BeforeOptimizerStep(Net):
    def on_before_optimizer_step(self, optimizer):
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad = parameter.grad.sign() * 0.01


class Clipping(Net):
    def configure_gradient_clipping(self, optimizer, gradient_clip_val=None, gradient_clip_algorithm=None):
        self.clip_gradients(optimizer, gradient_clip_val=0.05, gradient_clip_algorithm="norm")


class KeptGradients(Net):
    def optimizer_zero_grad(self, epoch, batch_idx, optimizer):
        optimizer.zero_grad(set_to_none=False)


class Backward(Net):
    def backward(self, loss):
        (loss * 0.5).backward()


class OptimizerStep(Net):
    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure):
        optimizer.step(closure=optimizer_closure)
        with torch.no_grad():
            self.net[0].weight.mul_(0.999)


class BothBatchHooks(BatchStart, BatchEnd):
    pass


HOOKED = [
    BatchStart,
    BatchEnd,
    BeforeZeroGrad,
    BeforeBackward,
    AfterBackward,
    BeforeOptimizerStep,
    Clipping,
    KeptGradients,
    Backward,
    OptimizerStep,
    BothBatchHooks,
]


@pytest.mark.narrow(13)
@pytest.mark.parametrize("kind", HOOKED)
@WAYS
def test_a_hook_takes_part_in_every_step(kind, accumulate, engine):
    compare(kind, engine, 6, data=short, accumulate_grad_batches=accumulate)


def test_control_a_hook_that_is_left_out_is_seen():
    for kind in (BatchEnd, AfterBackward):
        plain, _ = compare(kind, "eager", data=short)
        _, sink = compare(Net, "eager", data=short)
        with pytest.raises(AssertionError):
            assert_parity(plain, sink)


class WarmUp(Net):
    """The documented way to warm a learning rate up."""

    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure):
        optimizer.step(closure=optimizer_closure)
        if self.trainer.global_step < 20:
            for group in optimizer.param_groups:
                group["lr"] = 0.05 * min(1.0, (self.trainer.global_step + 1) / 20.0)


@ENGINES
@pytest.mark.parametrize("sink_size", [6, -1])
def test_warm_up_by_the_global_step(sink_size, engine):
    plain, _ = compare(WarmUp, engine, sink_size, data=short)
    assert len(set(plain.events.learning_rates.values())) > 15


class StepsAtBatches(Net):
    """Scales the gradients by the batch index that the hook is called with."""

    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure):
        optimizer_closure()
        if batch_idx > 8:
            self.net[0].weight.grad.mul_(0.1)
        optimizer.step()


class StepsAtEpochs(Net):
    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure):
        super().optimizer_step(epoch, batch_idx, optimizer, optimizer_closure)
        if epoch == 1:
            with torch.no_grad():
                self.net[0].weight.mul_(0.9)


class ClearsAtEpochs(Net):
    def optimizer_zero_grad(self, epoch, batch_idx, optimizer):
        optimizer.zero_grad(set_to_none=epoch % 2 == 0)


@pytest.mark.narrow(11)
@pytest.mark.parametrize("kind", [StepsAtBatches, StepsAtEpochs, ClearsAtEpochs])
@WAYS
def test_hooks_that_use_the_numbers_they_are_called_with(kind, accumulate, engine):
    options = {"data": lambda: loader(14), "accumulate_grad_batches": accumulate, "max_epochs": 3}
    _, sink = compare(kind, engine, -1, **options)
    assert not set(vars(sink.module)) & {"optimizer_step", "optimizer_zero_grad", "log"}


class SchedulerStep(Net):
    """Steps its scheduler a few times only."""

    def lr_scheduler_step(self, scheduler, metric):
        if scheduler.last_epoch < 8:
            scheduler.step()


@ENGINES
@pytest.mark.parametrize("accumulate", [1, 2])
def test_the_module_steps_its_scheduler(accumulate, engine):
    options = {"data": short, "accumulate_grad_batches": accumulate}
    plain, _ = compare(lambda: SchedulerStep(schedule="onecycle"), engine, 6, **options)
    assert 8 <= len(set(plain.events.learning_rates.values())) <= 10


class StopsEpochs(Net):
    def on_train_batch_start(self, batch, batch_idx):
        return -1 if batch_idx == 7 else None


@ENGINES
@pytest.mark.parametrize("sink_size", [4, 7, 8, -1])
def test_an_epoch_that_the_module_ends(sink_size, engine):
    plain, sink = compare(StopsEpochs, engine, sink_size, data=short)
    assert plain.trainer.global_step == sink.trainer.global_step == 14


class EndsEpochs(Net):
    """Does what a program could do before it ends an epoch, and does so again and again."""

    def __init__(self, does):
        super().__init__()
        self.does, self.met, self.kept = does, 0, []
        self.register_buffer("seen", torch.zeros(3))

    def on_train_batch_start(self, batch, batch_idx):
        if self.does == "logs":
            self.log("mean of the inputs", batch[0].mean())
        elif self.does == "counts":
            self.met += 1
        elif self.does == "keeps":
            self.kept.append(batch[0].mean())
        elif self.does == "writes":
            self.seen += nn.functional.one_hot(batch[1], 3).sum(0)
        return -1 if batch_idx >= 9 else None


@pytest.mark.narrow(13)
@ENGINES
@pytest.mark.parametrize("does", ["nothing", "logs", "counts", "keeps", "writes"])
@pytest.mark.parametrize("sink_size", [7, -1])
def test_epochs_that_the_module_ends_behind_what_it_does_at_each_batch(sink_size, does, engine):
    plain, sink = compare(lambda: EndsEpochs(does), engine, sink_size, data=lambda: loader(20), max_epochs=12)
    assert plain.trainer.global_step == sink.trainer.global_step == 108
    assert plain.module.met == sink.module.met
    torch.testing.assert_close(sink.module.kept, plain.module.kept)
    names = ("callback_metrics", "logged_metrics")
    for expected, found in ([getattr(run.trainer, name) for run in (plain, sink)] for name in names):
        torch.testing.assert_close(dict(found), dict(expected), rtol=1e-4, atol=1e-6)


class TurnsLate(Net):
    """Ends each epoch at its fourth batch, and takes another way late."""

    def on_train_batch_start(self, batch, batch_idx):
        return -1 if batch_idx >= 3 else None

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        return loss * 2 if self.current_epoch >= 36 else loss


def test_a_new_way_is_recorded_at_once_however_many_epochs_were_ended(monkeypatch):
    epochs, span = [], Recorder.span

    def recorded(self, body, rewind):
        epochs.append(trainer.current_epoch)
        return span(self, body, rewind)

    monkeypatch.setattr(Recorder, "span", recorded)
    trainer = L.Trainer(
        strategy=SinkStrategy(-1, epoch="dataset", engine="traced"), max_epochs=40, logger=False, **QUIET
    )
    trainer.fit(TurnsLate(), loader(6, last=8))
    assert epochs.count(36) >= 4


class Manual(Net):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(loss)
        if batch_idx % 2:
            self.clip_gradients(optimizer, gradient_clip_val=0.1)
            optimizer.step()
        return {"loss": loss}


@ENGINES
@pytest.mark.parametrize("sink_size", [4, -1])
def test_manual_optimization(sink_size, engine):
    compare(Manual, engine, sink_size, data=short)


class Skips(Net):
    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        return None if batch_idx % 4 == 2 else loss


@pytest.mark.narrow(11)
@ENGINES
@pytest.mark.parametrize("sink_size", [3, -1])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_steps_that_return_none(sink_size, accumulate, engine):
    compare(Skips, engine, sink_size, "the step returned no loss", accumulate_grad_batches=accumulate)


class Extras(Net):
    def training_step(self, batch, batch_idx):
        logits = self.net(batch[0])
        loss = nn.functional.cross_entropy(logits, batch[1])
        return {"loss": loss, "logits": logits.detach(), "nested": {"labels": [batch[1]]}, "name": "step", "none": None}


class KeepsOutputs(L.Callback):
    def __init__(self, kept):
        self.kept = kept

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        total = trainer.fit_loop.epoch_loop.batch_progress.total.ready
        assert set(outputs) == {"loss", "logits", "nested", "name", "none"}
        assert (outputs["name"], outputs["none"]) == ("step", None)
        assert not outputs["loss"].requires_grad
        self.kept[f"logits {total}"] = outputs["logits"].clone()
        self.kept[f"labels {total}"] = outputs["nested"]["labels"][0].clone()
        self.kept[f"batch {total}"] = batch[0].clone()


@ENGINES
@pytest.mark.parametrize("sink_size", [4, -1])
def test_callbacks_get_what_the_step_returns(sink_size, engine):
    kept = []

    def callbacks():
        kept.append({})
        return [KeepsOutputs(kept[-1])]

    compare(Extras, engine, sink_size, data=short, callbacks=callbacks)
    plain, sink = kept
    assert len(sink) == (18 if sink_size == 4 else 6)
    assert_tensors({name: plain[name] for name in sink}, sink, engine == "eager")


class Appends(Net):
    """Lightning's own way to keep outputs for the end of an epoch."""

    def __init__(self):
        super().__init__()
        self.outputs = []

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.outputs.append(loss.detach())
        return loss

    def on_train_epoch_end(self):
        assert len(self.outputs) == 9
        self.log("spread", torch.stack(self.outputs).std())
        self.outputs.clear()


@ENGINES
def test_outputs_kept_on_the_module(engine):
    compare(Appends, engine, -1, data=short)


class Counts(Net):
    """A counter on the module decides what is trained."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def training_step(self, batch, batch_idx):
        self.count += 1
        return super().training_step(batch, batch_idx) * (2.0 if self.count > 9 else 1.0)


@ENGINES
def test_a_counter_on_the_module(engine):
    _, sink = compare(Counts, engine, -1, None if positions.KNOWN else "count", data=short)
    assert sink.module.count == 18


class CountsInABuffer(Net):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.tensor(0))

    def training_step(self, batch, batch_idx):
        self.count += 1
        return super().training_step(batch, batch_idx) * (1.0 + (self.count > 9))


class Average(Net):
    def __init__(self):
        super().__init__()
        self.register_buffer("average", self.net[0].weight.detach().clone())
        self.mean = copy.deepcopy(self.net).requires_grad_(False)

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.average.mul_(0.9).add_(self.net[0].weight.detach(), alpha=0.1)
        with torch.no_grad():
            for mine, theirs in zip(self.mean.parameters(), self.net.parameters(), strict=True):
                mine.lerp_(theirs, 0.1)


class ReboundAverage(Net):
    """A buffer that is replaced and not written to."""

    def __init__(self):
        super().__init__()
        self.register_buffer("average", self.net[0].weight.detach().clone())

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.average = 0.9 * self.average + 0.1 * self.net[0].weight.detach()


class Frozen(Net):
    def __init__(self):
        super().__init__()
        self.net[0].requires_grad_(False)
        self.net[1].eval()


class Tied(Net):
    def __init__(self):
        super().__init__()
        self.extra = nn.Linear(6, 8, bias=False)
        self.extra.weight = self.net[0].weight

    def training_step(self, batch, batch_idx):
        x, y = batch
        return super().training_step([x + self.extra(x) @ self.net[0].weight * 0.1, y], batch_idx)


class Groups(Net):
    def configure_optimizers(self):
        first, last = list(self.net[:4].parameters()), list(self.net[4:].parameters())
        groups = [{"params": first}, {"params": last, "lr": 0.001, "weight_decay": 0.1}, {"params": []}]
        optimizer = torch.optim.SGD(groups[:2], lr=0.05, momentum=0.9, nesterov=True)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, [lambda n: 0.95**n, lambda n: 1 + 0.1 * n])
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Unfreezes(Frozen):
    def on_train_epoch_start(self):
        if self.current_epoch == 1:
            self.net[0].requires_grad_(True)


@pytest.mark.narrow(11)
@pytest.mark.parametrize("kind", [CountsInABuffer, Average, ReboundAverage, Frozen, Tied, Groups, Unfreezes])
@WAYS
def test_steps_that_are_compiled(kind, accumulate, engine):
    compare(kind, engine, 6, data=short, accumulate_grad_batches=accumulate)
