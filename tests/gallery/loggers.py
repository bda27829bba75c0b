"""Loggers that a step calls by hand; the first of the Trainer's keeps rows in their order, with those of `self.log`."""

import numpy as np
import torch

from gallery.case import Small, case, from_3_11, numbers
from gallery.manual import Manual
from lightning_sink import StepCallback


@case(inductor=True, size=9)
class LogsByHand(Small):
    """Also in its hook, where the step is counted, and beside `self.log`."""

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.log("loss", loss, on_step=True, on_epoch=True)
        self.logger.log_metrics({"by hand": loss.detach(), "rows": len(batch[1])}, step=self.global_step)
        return loss

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.logger.log_metrics({"late": outputs["loss"].detach(), "rate": 0.05}, self.global_step)


@case(options={"accumulate_grad_batches": 2}, **numbers())
class LogsNumbersByHand(Small):
    """With a number of the step that it computes itself, as is done where epochs are to follow each other."""

    def training_step(self, batch, batch_idx):
        loss, many = self.loss(batch), self.trainer.num_training_batches
        right = (self(batch[0]).argmax(1) == batch[1]).sum()
        if self.logger is not None:
            metrics = {"loss": loss.item(), "right": right, "share": right.item() / len(batch[1]), "last": False}
            self.logger.log_metrics(metrics, step=self.current_epoch * many + batch_idx)
        return loss


@case(size=9, options={"log_every_n_steps": 2}, **from_3_11("a value of a tensor"))
class LogsAtTimesByHand(Small):
    """Some steps have two rows, some one, and some none."""

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.log("loss", loss)
        if batch_idx % 3 == 0:
            for logger in self.loggers:
                logger.log_metrics({"third": loss.item()}, step=self.global_step)
        if self.global_step % 4 == 3:
            self.trainer.logger.log_metrics({"fourth": loss.item()}, step=self.global_step)
        return loss


@case()
class ManualStepsLogByHand(Manual):
    def training_step(self, batch, batch_idx):
        super().training_step(batch, batch_idx)
        norm = sum(parameter.grad.square().sum() for parameter in self.parameters())
        self.logger.log_metrics({"norm": norm, "place": torch.tensor([2**60 + 1]) + batch_idx}, step=self.global_step)


class OfTheStep(StepCallback):
    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        trainer.logger.log_metrics({"mean": outputs["loss"].detach() / 2}, step=trainer.global_step)


@case(options={"callbacks": lambda: [OfTheStep()]})
class ACallbackOfTheStepLogsByHand(Small):
    pass


@case(eager="`logger` is read")
class AsksItsLoggerForMore(Small):
    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        if self.logger.name == "rows":
            self.logger.log_metrics({"by hand": loss.detach()}, step=self.global_step)
        return loss


@case(eager="`log_metrics()` of a logger gets a `float64` that is no number")
class LogsMoreThanNumbersByHand(Small):
    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.logger.log_metrics({"by hand": loss.detach(), "of numpy": np.float64(0.5)}, step=batch_idx)
        return loss
