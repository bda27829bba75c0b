"""Hooks around a step: batches, schedulers and epochs."""

import torch
from torch import nn
from torch.optim import lr_scheduler

from gallery.case import Kept, Small, carried, case

# -- batches ----------------------------------------------------------------------------------------------------------


@case()
class EndsEachEpochAtABatch(Small):
    def on_train_batch_start(self, batch, batch_idx):
        return -1 if batch_idx == 5 else None


@case()
class LeavesOutAnEpoch(Small):
    def on_train_batch_start(self, batch, batch_idx):
        return -1 if self.current_epoch == 1 else None


@case()
class ChangesTheBatchInItsPlace(Small):
    """The batches are a list, so an epoch finds what the one before left."""

    def on_train_batch_start(self, batch, batch_idx):
        batch[0].mul_(1.1)


@case(data=Kept)
class ChangesBatchesThatAreKept(ChangesTheBatchInItsPlace):
    pass


@case(data=Kept)
class TheStepChangesBatchesThatAreKept(Small):
    def training_step(self, batch, batch_idx):
        loss = self.loss((batch[0].clone(), batch[1]))
        batch[0].data.sub_(0.1 * batch[0].mean())
        return loss


@case()
class SetsTheRateAtEachBatch(Small):
    def on_train_batch_start(self, batch, batch_idx):
        for group in self.optimizers().param_groups:
            group["lr"] *= 0.97


@case()
class SetsTheRateAfterEachBatch(Small):
    def on_train_batch_end(self, outputs, batch, batch_idx):
        for group in self.optimizers().optimizer.param_groups:
            group["lr"] = group["lr"] * 0.97


@case()
class AveragesWeightsAfterEachBatch(Small):
    """The average is in buffers of the module, and pulls at the weights."""

    def __init__(self):
        super().__init__()
        for name, parameter in list(self.net.named_parameters()):
            self.register_buffer("average_" + name.replace(".", "_"), parameter.detach().clone())

    def on_train_batch_end(self, outputs, batch, batch_idx):
        with torch.no_grad():
            for name, parameter in self.net.named_parameters():
                average = getattr(self, "average_" + name.replace(".", "_"))
                average.lerp_(parameter, 0.1)
                parameter.lerp_(average, 0.01)


@case()
class LooksAtOutputsAfterEachBatch(Small):
    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.log("seen", outputs["loss"] * 2, on_step=True, on_epoch=True)


@case(**carried())
class CountsBatchesInPython(Small):
    def __init__(self):
        super().__init__()
        self.seen = 0

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.seen += 1

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        return loss / (1 + self.seen)


# -- schedulers -------------------------------------------------------------------------------------------------------


class Scheduled(Small):
    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        return [optimizer], [{"scheduler": lr_scheduler.ExponentialLR(optimizer, 0.95), "interval": "step"}]


case()(Scheduled)


@case()
class StepsItsSchedulerTwice(Scheduled):
    def lr_scheduler_step(self, scheduler, metric):
        scheduler.step()
        scheduler.step()


@case()
class StepsItsSchedulerByTheGlobalStep(Scheduled):
    def lr_scheduler_step(self, scheduler, metric):
        if self.trainer.global_step % 3 == 0:
            scheduler.step()


class Halving:
    """A scheduler that is not torch's."""

    def __init__(self, optimizer):
        self.optimizer, self.count = optimizer, 0

    def step(self):
        self.count += 1
        for group in self.optimizer.param_groups:
            group["lr"] = 0.05 * 0.5 ** (self.count // 6)

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]


@case()
class ASchedulerThatIsNotTorchs(Scheduled):
    def configure_optimizers(self):
        optimizer = Small.configure_optimizers(self)
        return [optimizer], [{"scheduler": Halving(optimizer), "interval": "step", "frequency": 2}]

    def lr_scheduler_step(self, scheduler, metric):
        scheduler.step()


@case()
class ChangesWeightsWhenItStepsItsScheduler(Scheduled):
    def lr_scheduler_step(self, scheduler, metric):
        scheduler.step()
        with torch.no_grad():
            self.net[0].weight.mul_(0.98)


@case(eager="keeps changing", size=-1)
class KeepsANumberWhenItStepsItsScheduler(Scheduled):
    def lr_scheduler_step(self, scheduler, metric):
        scheduler.step()
        self.much = scheduler.last_epoch

    def training_step(self, batch, batch_idx):
        return self.loss(batch) * (1 + 0.1 * getattr(self, "much", 0))


@case(raises="You can't `self.log")
class LogsWhenItStepsItsScheduler(Scheduled):
    def lr_scheduler_step(self, scheduler, metric):
        scheduler.step()
        self.log("rate", scheduler.get_last_lr()[0])


# -- epochs -----------------------------------------------------------------------------------------------------------


@case(options={"max_epochs": 3})
class AnnealsANumberByEpoch(Small):
    def on_train_epoch_start(self):
        self.weight = 1.0 / (1 + self.current_epoch)

    def training_step(self, batch, batch_idx):
        return self.loss(batch) * self.weight


@case(options={"max_epochs": 3})
class AnnealsATensorByEpoch(Small):
    def __init__(self):
        super().__init__()
        self.register_buffer("weight", torch.ones(()))

    def on_train_epoch_start(self):
        self.weight.fill_(1.0 / (1 + self.current_epoch))

    def training_step(self, batch, batch_idx):
        return self.loss(batch) * self.weight


@case(options={"max_epochs": 3})
class ReplacesATensorByEpoch(AnnealsATensorByEpoch):
    def on_train_epoch_start(self):
        self.weight = torch.tensor(1.0 / (1 + self.current_epoch))


@case(options={"max_epochs": 3})
class HalvesTheRateByEpoch(Small):
    def on_train_epoch_end(self):
        self.optimizers().param_groups[0]["lr"] *= 0.5


@case(options={"max_epochs": 3})
class ChangesMomentumByEpoch(Small):
    def on_train_epoch_start(self):
        self.optimizers().param_groups[0]["momentum"] = 0.5 + 0.1 * self.current_epoch


@case(options={"max_epochs": 3})
class FreezesALayerByEpoch(Small):
    def on_train_epoch_start(self):
        self.net[0].requires_grad_(self.current_epoch != 1)


@case(options={"max_epochs": 3})
class ForgetsTheOptimizersStateByEpoch(Small):
    def on_train_epoch_start(self):
        self.trainer.optimizers[0].state.clear()


@case(options={"max_epochs": 3})
class ReplacesItsOptimizer(Small):
    def on_train_epoch_start(self):
        if self.current_epoch == 1:
            self.trainer.optimizers = [torch.optim.Adam(self.parameters(), lr=0.01)]


@case(options={"max_epochs": 3})
class ReplacesALayer(Small):
    def on_train_epoch_start(self):
        if self.current_epoch == 1:
            self.net[1] = nn.ReLU()


@case(options={"max_epochs": 3})
class ReplacesTheDataOfWeights(Small):
    def on_train_epoch_start(self):
        self.net[0].weight.data = self.net[0].weight.data * 0.5


@case(options={"max_epochs": 3})
class LoadsWeightsByEpoch(Small):
    def on_train_epoch_start(self):
        self.load_state_dict({name: tensor * 0.5 for name, tensor in self.state_dict().items()})


@case(options={"max_epochs": 3})
class ReplacesAMethodByEpoch(Small):
    def on_train_epoch_start(self):
        if self.current_epoch == 1:
            self.forward = lambda x: 2 * self.net(x)


@case(options={"max_epochs": 4})
class AccumulatesMoreByEpoch(Small):
    def on_train_epoch_start(self):
        self.trainer.accumulate_grad_batches = 1 + self.current_epoch


@case(options={"max_epochs": 3})
class PutsALayerIntoEvaluationByEpoch(Small):
    def __init__(self):
        super().__init__()
        self.net.insert(1, nn.Dropout(0.5))

    def on_train_epoch_start(self):
        self.net[1].train(self.current_epoch != 1)
