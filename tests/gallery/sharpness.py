"""Sharpness-aware optimizers that go back to where they were by another tensor's memory, as published ones do."""

import lightning as L
import torch
from torch import nn, optim

from gallery.case import Small, add, case


class GoingBack(optim.Optimizer):
    """Climbs, and steps from where it was: the weight is given the memory of a copy that stays in the state."""

    def __init__(self, parameters, inner=optim.SGD, **options):
        super().__init__(parameters, {"radius": 0.05, **options})
        self.inner = inner(self.param_groups, **options)
        self.param_groups = self.inner.param_groups

    @torch.no_grad()
    def climb(self):
        norm = torch.stack([weight.grad.norm() for weight, _ in self.weights()]).norm()
        for weight, group in self.weights():
            self.state[weight]["before"] = weight.data.clone()
            weight.add_(weight.grad * (group["radius"] / (norm + 1e-12)))
        self.zero_grad()

    @torch.no_grad()
    def descend(self):
        for weight, _ in self.weights():
            weight.data = self.state[weight]["before"]
        self.inner.step()
        self.zero_grad()

    def weights(self):
        return [(weight, group) for group in self.param_groups for weight in group["params"]]

    @torch.no_grad()
    def step(self, closure=None):
        with torch.enable_grad():
            loss = closure()
        self.climb()
        with torch.enable_grad():
            closure()
        self.descend()
        return loss


@case(inductor=True)
class SharpnessByMemory(Small):
    def configure_optimizers(self):
        return GoingBack(self.parameters(), lr=0.05, momentum=0.9)


@case(inductor=True)
class SharpnessByMemoryByHand(Small):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers().optimizer
        loss = self.loss(batch)
        self.manual_backward(loss)
        optimizer.climb()
        self.manual_backward(self.loss(batch))
        optimizer.descend()
        self.log("loss", loss)

    def configure_optimizers(self):
        return GoingBack(self.parameters(), optim.AdamW, lr=0.01)


class Snapshot(L.Callback):
    """Holds what weights and state were when an epoch began; goes back to it behind the third one."""

    def on_train_epoch_start(self, trainer, module):
        self.weights = [weight.data for weight in module.parameters()]
        self.states = [state["before"] for state in trainer.optimizers[0].state.values() if "before" in state]

    def on_train_epoch_end(self, trainer, module):
        moved = sum((now - then).abs().sum() for now, then in zip(module.parameters(), self.weights, strict=True))
        module.log("moved", moved)
        module.log("held", sum((held.sum() for held in self.states), start=torch.zeros(())))
        if trainer.current_epoch == 2:
            for weight, then in zip(module.parameters(), self.weights, strict=True):
                weight.data = then


class Replacing(L.Callback):
    """Puts another tensor into the place that shares its memory with a weight, and changes what was there."""

    def on_train_epoch_start(self, trainer, module):
        if trainer.current_epoch in (1, 3):
            for state in trainer.optimizers[0].state.values():
                state["before"] = state["before"] * 2


class Writing(L.Callback):
    """Writes to the copy, which is the weight's memory by then."""

    def on_train_epoch_start(self, trainer, module):
        for state in trainer.optimizers[0].state.values():
            if "before" in state:
                state["before"].mul_(0.9)


for callback in (Snapshot, Replacing, Writing):
    add(
        f"sharpness by memory and a callback that is {callback.__name__.lower()}",
        SharpnessByMemory,
        options={"max_epochs": 4, "callbacks": lambda callback=callback: [callback()]},
    )


class LooksAtTheCopy(SharpnessByMemory):
    """Another step asks for the copy of the one before."""

    def training_step(self, batch, batch_idx):
        held = [state["before"] for state in self.optimizers().optimizer.state.values() if "before" in state]
        return self.loss(batch) + sum((each.square().sum() for each in held), start=torch.zeros(())) * 0.01


add("sharpness by memory of which steps look at the copy", LooksAtTheCopy, eager="shares its memory")


@case(eager="the step replaces `.data`")
class KeepsTheCopyOfEachStep(SharpnessByMemory):
    """What it had been given in a step stays there."""

    def __init__(self):
        super().__init__()
        self.kept = nn.Module()

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.kept.copy = [state["before"] for state in self.optimizers().optimizer.state.values()]

    def on_train_epoch_end(self):
        self.log("kept", sum(each.sum() for each in self.kept.copy))
