"""Optimizers that users write: in plain Python, with counters, with state of every kind."""

import json
import math
from functools import partial

import torch
from torch import optim

from gallery.case import add, carried, late_before_3_11
from gallery.optimizers import Optimized
from parity import loader


class Sign(optim.Optimizer):
    """The sign of the gradient, in plain Python."""

    def __init__(self, parameters, lr=0.01):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.update(parameter, group)
        return loss

    def update(self, parameter, group):
        parameter.add_(parameter.grad.sign(), alpha=-group["lr"])


class Counting(Sign):
    """Counts its steps in Python, in the state of each parameter."""

    def update(self, parameter, group):
        state = self.state[parameter]
        state["step"] = state.get("step", 0) + 1
        parameter.add_(parameter.grad, alpha=-group["lr"] / state["step"] ** 0.5)


class ByItsSize(Sign):
    """Adafactor as transformers has it: rate and decay by the count, and by a root of the mean square that it keeps."""

    def update(self, parameter, group):
        state = self.state[parameter]
        if len(state) == 0:
            state["step"], state["RMS"], state["square"] = 0, 0, torch.zeros_like(parameter)
        state["step"] += 1
        state["RMS"] = parameter.norm(2) / parameter.numel() ** 0.5
        size = max(1e-3, state["RMS"]) * min(0.01 * state["step"], 1.0 / math.sqrt(state["step"]))
        decay = 1.0 - math.pow(state["step"], -0.8)
        state["square"].mul_(decay).add_(parameter.grad**2 + 1e-30, alpha=1.0 - decay)
        parameter.add_(parameter.grad * state["square"].rsqrt() * size, alpha=-group["lr"])


class CorrectingByItsState(Sign):
    """Adam as torch itself had it before 1.12, with what depends on the count decided by Python."""

    def update(self, parameter, group):
        state = self.state[parameter]
        if len(state) == 0:
            state["step"], state["product"] = 0, 1.0
            state["average"], state["square"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        state["step"] += 1
        state["product"] *= 0.9
        state["average"].mul_(0.9).add_(parameter.grad, alpha=0.1)
        state["square"].mul_(0.99).addcmul_(parameter.grad, parameter.grad, value=0.01)
        if state["step"] > 5:
            size = group["lr"] * math.sqrt(1 - 0.99 ** state["step"]) / (1 - state["product"])
            parameter.addcdiv_(state["average"], state["square"].sqrt().add_(1e-8), value=-size)
        else:
            parameter.add_(state["average"], alpha=-group["lr"] / (1 - state["product"]))


class CountingWhatItDoes(Sign):
    """Each parameter has a count of its own."""

    def update(self, parameter, group):
        state = self.state[parameter]
        state["step"] = state.get("step", 0) + (1 if parameter.dim() > 1 else 2)
        parameter.add_(parameter.grad, alpha=-group["lr"] / state["step"])


class StartingOver(Sign):
    """Its counts come round."""

    def update(self, parameter, group):
        state = self.state[parameter]
        state["step"] = state.get("step", 0) + 1
        if state["step"] == 4:
            state["step"] = 0
            parameter.mul_(0.99)
        super().update(parameter, group)


class CountingItself(Sign):
    """Counts its steps in an attribute."""

    def __init__(self, parameters, lr=0.01):
        super().__init__(parameters, lr)
        self.count = 0

    def step(self, closure=None):
        self.count += 1
        return super().step(closure)


class CountingInItsGroup(Sign):
    """Counts its steps in the parameter group."""

    def update(self, parameter, group):
        group["step"] = group.get("step", 0) + 1
        super().update(parameter, group)


class CorrectingByItsGroup(Sign):
    """Counts in the group, where the first parameter is met, and corrects its averages by that."""

    def step(self, closure=None):
        for group in self.param_groups:
            if "step" in group:
                group["step"] += 1
            else:
                group["step"] = 1
        return super().step(closure)

    def update(self, parameter, group):
        state = self.state[parameter]
        if len(state) == 0:
            state["average"], state["square"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        state["average"].mul_(0.9).add_(parameter.grad, alpha=0.1)
        state["square"].mul_(0.99).addcmul_(parameter.grad, parameter.grad, value=0.01)
        size = group["lr"] * math.sqrt(1 - 0.99 ** group["step"]) / (1 - 0.9 ** group["step"])
        parameter.addcdiv_(state["average"], state["square"].sqrt().add_(1e-8), value=-size)


class WarmingUpByItsGroup(Sign):
    """Its rate depends on a count in the group, and so does what it keeps there."""

    def step(self, closure=None):
        loss = super().step(closure)
        for group in self.param_groups:
            group["k"] = group.get("k", 0) + 1
        return loss

    def update(self, parameter, group):
        warm = min(1.0, (group.get("k", 0) + 1) / 7)
        group["weight"] = group.get("weight", 0.0) + group["lr"] * warm
        parameter.add_(parameter.grad, alpha=-group["lr"] * warm).mul_(1 - 0.01 / (1 + group["weight"]))


class FreeOfSchedules(Sign):
    """As schedulefree's: what its first step makes in the group, a maximum that stays, a sum of weights."""

    def __init__(self, parameters, lr=0.01):
        super().__init__(parameters, lr)
        for group in self.param_groups:
            group.update(weight_sum=0.0, largest=-1.0)

    def step(self, closure=None):
        for group in self.param_groups:
            if "step" not in group:
                group["step"] = 0
            group["step"] += 1
            warm = group["step"] / 5 if group["step"] < 5 else 1.0
            largest = group["largest"] = max(group["lr"] * warm, group["largest"])
            weight = (group["step"] ** 0.5) * (largest**2.0)
            total = group["weight_sum"] = group["weight_sum"] + weight
            group["share"] = weight / total if total != 0.0 else 0.0
        return super().step(closure)

    def update(self, parameter, group):
        correction = 1.0 - math.pow(0.9, group["step"])
        parameter.add_(parameter.grad, alpha=-group["lr"] * group["share"] / correction)


class LookingAhead(optim.SGD):
    """Goes back to slow weights when a count in the group comes round."""

    def step(self, closure=None):
        loss = super().step(closure)
        for group in self.param_groups:
            group["counter"] = group.get("counter", 0) + 1
            if group["counter"] < 3:
                continue
            group["counter"] = 0
            for parameter in group["params"]:
                slow = self.state[parameter].setdefault("slow", parameter.detach().clone())
                with torch.no_grad():
                    slow.lerp_(parameter, 0.5)
                    parameter.copy_(slow)
        return loss


class WritingItsCount(CountingInItsGroup):
    """What takes no stand-in has the step run again: it counts once."""

    def step(self, closure=None):
        loss = super().step(closure)
        json.dumps({"step": self.param_groups[0]["step"]})
        return loss


class AddingTwoNumbers(Sign):
    """The sums grow past what float64 tells apart."""

    def update(self, parameter, group):
        state = self.state[parameter]
        one, other = state.get("one", 0), state.get("other", 1)
        state["one"], state["other"] = 3 * other, 7 * one + 11 * other
        parameter.add_(parameter.grad, alpha=-group["lr"] / (1 + state["one"] % 7))


class TakingItsCountOut(CountingInItsGroup):
    def step(self, closure=None):
        loss = super().step(closure)
        if self.param_groups[0]["step"] == 32:
            del self.param_groups[0]["step"]
        return loss


class OfComplexPowers(CountingInItsGroup):
    def update(self, parameter, group):
        super().update(parameter, group)
        parameter.mul_(1 - 0.01 * abs((30 - group["step"]) ** 0.5))


class OfTwoForms(Sign):
    """Does other arithmetic with lists of tensors than with one tensor after the other."""

    def __init__(self, parameters, lr=0.01):
        optim.Optimizer.__init__(self, parameters, {"lr": lr, "foreach": None, "fused": None})

    def update(self, parameter, group):
        if group["foreach"] is None and group["fused"] is None:
            parameter.add_(parameter.grad / (1e-8 + parameter.grad.norm()), alpha=-group["lr"])
        else:
            super().update(parameter, group)


class Lion(Sign):
    """State tensors that it makes at the first step and writes in place."""

    def update(self, parameter, group):
        state = self.state[parameter]
        if not state:
            state["average"] = torch.zeros_like(parameter)
        update = state["average"].mul(0.9).add(parameter.grad, alpha=0.1).sign_()
        parameter.mul_(1 - group["lr"] * 0.1).add_(update, alpha=-group["lr"])
        state["average"].lerp_(parameter.grad, 0.01)


class Replacing(Sign):
    """State tensors that it replaces at each step."""

    def update(self, parameter, group):
        state = self.state[parameter]
        state["average"] = 0.9 * state.get("average", 0.0) + 0.1 * parameter.grad
        parameter.sub_(group["lr"] * state["average"])


class Nested(Sign):
    """State in a dictionary of its own below the parameter's."""

    def update(self, parameter, group):
        inner = self.state[parameter].setdefault("inner", {"average": torch.zeros_like(parameter)})
        inner["average"] = 0.9 * inner["average"] + 0.1 * parameter.grad
        parameter.sub_(group["lr"] * inner["average"])


class KeepingItsNorm(Sign):
    """A tensor in an attribute, replaced at each step."""

    norm = torch.zeros(())

    def step(self, closure=None):
        loss = super().step(closure)
        squares = [p.grad.square().sum() for group in self.param_groups for p in group["params"]]
        self.norm = 0.9 * self.norm + 0.1 * torch.stack(squares).sum().sqrt()
        return loss


class WritingThroughData(Sign):
    """An old style: `.data` everywhere."""

    def update(self, parameter, group):
        parameter.data = parameter.data - group["lr"] * parameter.grad.data


class WritingInDataInPlace(Sign):
    def update(self, parameter, group):
        parameter.data.add_(parameter.grad.data, alpha=-group["lr"])


class Centralized(optim.Adam):
    """A subclass of torch's that changes the gradients first."""

    def step(self, closure=None):
        loss = None if closure is None else closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad.dim() > 1:
                    parameter.grad.sub_(parameter.grad.mean(1, keepdim=True))
        super().step()
        return loss


class Lookahead(optim.Optimizer):
    """Wraps another optimizer and goes back to slow weights every fifth step."""

    def __init__(self, parameters):
        self.inner, self.count = self.inner_of(parameters), 0
        super().__init__(self.inner.param_groups, {"lr": 0.05})
        self.param_groups = self.inner.param_groups
        self.slow = [parameter.detach().clone() for parameter in self.param_groups[0]["params"]]

    def inner_of(self, parameters):
        return optim.SGD(parameters, lr=0.05, momentum=0.9)

    def step(self, closure=None):
        loss = self.inner.step(closure)
        self.count += 1
        if self.count % 5 == 0:
            for slow, parameter in zip(self.slow, self.param_groups[0]["params"], strict=True):
                slow.lerp_(parameter.detach(), 0.5)
                parameter.data.copy_(slow)
        return loss


class LookaheadOfAdam(Lookahead):
    """Which counts its steps in tensors."""

    def inner_of(self, parameters):
        return optim.AdamW(parameters, lr=0.01)


class TakesTurns(optim.Optimizer):
    """Holds two others, of which each trains with groups of its own."""

    def __init__(self, parameters):
        first, *others = parameters
        super().__init__([first, *others], {"lr": 0.01})
        self.first, self.others = optim.RMSprop([first], lr=0.01), optim.Adam(others, lr=0.02)

    def step(self, closure=None):
        loss = self.first.step(closure)
        self.others.step()
        return loss


class Several(optim.Optimizer):
    """Holds others in a list."""

    def __init__(self, parameters):
        first, *others = parameters
        super().__init__([first, *others], {"lr": 0.05})
        self.inner = [optim.SGD([first], lr=0.05, momentum=0.9), optim.Adam(others, lr=0.01)]

    def step(self, closure=None):
        loss = self.inner[0].step(closure)
        self.inner[1].step()
        return loss

    def start_over(self):
        for inner in self.inner:
            inner.state.clear()


class Renewed(Lookahead):
    """Goes on with another optimizer inside."""

    def start_over(self):
        self.inner = self.inner_of(self.param_groups[0]["params"])
        self.param_groups = self.inner.param_groups


class SharpnessAware(optim.SGD):
    """Two gradients for each step: the closure is called twice."""

    def step(self, closure=None):
        with torch.enable_grad():
            loss = closure()
        parameters = [p for group in self.param_groups for p in group["params"]]
        norm = torch.stack([p.grad.norm() for p in parameters]).norm() + 1e-12
        moves = [0.05 * p.grad / norm for p in parameters]
        with torch.no_grad():
            torch._foreach_add_(parameters, moves)
        with torch.enable_grad():
            closure()
        with torch.no_grad():
            torch._foreach_sub_(parameters, moves)
        super().step()
        return loss


OWN = {
    Sign: None,
    Counting: None,
    CorrectingByItsState: None,
    ByItsSize: None,
    CountingWhatItDoes: None,
    StartingOver: None,
    CountingItself: carried().get("eager"),
    CountingInItsGroup: None,
    CorrectingByItsGroup: None,
    WarmingUpByItsGroup: None,
    FreeOfSchedules: None,
    LookingAhead: None,
    OfTwoForms: None,
    WritingItsCount: "recording it failed",
    AddingTwoNumbers: None,
    TakingItsCountOut: None,
    OfComplexPowers: "needed as a plain number",
    Lion: None,
    Replacing: None,
    Nested: "changes Python state",
    KeepingItsNorm: "changes Python state",
    WritingThroughData: None,
    WritingInDataInPlace: None,
    Centralized: None,
    Lookahead: carried().get("eager"),
    LookaheadOfAdam: carried().get("eager"),
    TakesTurns: None,
    Several: None,
    SharpnessAware: None,
}
for kind, eager in OWN.items():
    # Numbers that go on to grow leave what tensors hold, which is a case of its own (`objects.py`).
    few = {"data": lambda: loader(9, last=8)} if kind is AddingTwoNumbers else {}
    add(f"own optimizer {kind.__name__}", partial(Optimized, kind), eager=eager, **few)


class WithASchedule(Optimized):
    """A schedule of torch's beside it, which sets other options."""

    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        schedule = optim.lr_scheduler.CosineAnnealingLR(optimizer, 12)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


for kind in (
    CountingInItsGroup,
    FreeOfSchedules,
    CorrectingByItsGroup,
    WarmingUpByItsGroup,
    LookingAhead,
    CorrectingByItsState,
    LookaheadOfAdam,
):
    add(
        f"own optimizer {kind.__name__} with a schedule",
        partial(WithASchedule, kind),
        **(carried() if kind is LookaheadOfAdam else {}),
    )


class StartingOverInEachEpoch(Optimized):
    def on_train_epoch_start(self):
        self.optimizers().optimizer.start_over()


for kind in (Several, Renewed):
    add(f"own optimizer {kind.__name__} that starts over", partial(StartingOverInEachEpoch, kind), **late_before_3_11())


class ReadingItsCount(Optimized):
    """The step looks at what the optimizer keeps."""

    def training_step(self, batch, batch_idx):
        states = self.optimizers().optimizer.state.values()
        weight = 1 + sum(state["step"] for state in states) / 100
        self.log("weight", weight)
        return weight * self.loss(batch)

    def on_train_epoch_end(self):
        self.log("count", float(max(state["step"] for state in self.optimizers().optimizer.state.values())))


class TakingHeadsInTurn(Optimized):
    """Their counts are equal at every second step."""

    def __init__(self, make_optimizer):
        super().__init__(make_optimizer)
        self.heads = torch.nn.ModuleList([torch.nn.Linear(8, 3), torch.nn.Linear(8, 3)])

    def training_step(self, batch, batch_idx):
        x, y = batch
        return torch.nn.functional.cross_entropy(self.heads[batch_idx % 2](self.net[:2](x)), y)


class FreezingALayer(Optimized):
    """The counts of its parameters differ from the second epoch on."""

    def on_train_epoch_start(self):
        self.net[0].requires_grad_(self.current_epoch != 1)


class SettingItsCountBack(Optimized):
    def on_train_epoch_start(self):
        for state in self.optimizers().optimizer.state.values():
            state["step"] = 0


class SettingOneCountBack(Optimized):
    def on_train_epoch_start(self):
        for state in [*self.optimizers().optimizer.state.values()][:1]:
            state["step"] = 1


add("own optimizer's count is read", partial(ReadingItsCount, CorrectingByItsState))
add("own optimizer's counts of heads in turn", partial(TakingHeadsInTurn, Counting), options={"max_epochs": 5})
add("own optimizer's counts differ later", partial(FreezingALayer, CorrectingByItsState), options={"max_epochs": 3})
add("own optimizer's count is set back", partial(SettingItsCountBack, CorrectingByItsState))
add("one of own optimizer's counts is set back", partial(SettingOneCountBack, CorrectingByItsState))


class EndingByItsCount(Optimized):
    """A later part of the step decides by what the optimizer has counted."""

    def on_train_batch_end(self, outputs, batch, batch_idx):
        if next(iter(self.optimizers().optimizer.state.values()))["step"] % 4 == 0:
            with torch.no_grad():
                self.net[0].weight.mul_(0.9)


class SettingRatesByTheCount(Optimized):
    def on_train_batch_end(self, outputs, batch, batch_idx):
        for group in self.trainer.optimizers[0].param_groups:
            group["lr"] = 0.1 / (1 + group["step"])


class ByTheCount(optim.lr_scheduler.LRScheduler):
    def get_lr(self):
        return [0.1 / (1 + group.get("step", 0)) for group in self.optimizer.param_groups]


class SchedulingByTheCount(Optimized):
    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        return [optimizer], [{"scheduler": ByTheCount(optimizer), "interval": "step"}]


class DividingByWhatIsLeft(Sign):
    def update(self, parameter, group):
        state = self.state[parameter]
        state["step"] = state.get("step", 0) + 1
        parameter.add_(parameter.grad, alpha=-group["lr"] / (14 - state["step"]))


add(
    "own optimizer's count decides in a later part",
    partial(EndingByItsCount, Counting),
    eager="a later part of the step",
)
add("a hook sets rates by own optimizer's count", partial(SettingRatesByTheCount, CountingInItsGroup))
add(
    "a schedule by own optimizer's count",
    partial(SchedulingByTheCount, CountingInItsGroup),
    eager="a schedule does so, too",
)
add("own optimizer divides by zero", partial(Optimized, DividingByWhatIsLeft), raises="division by zero")
