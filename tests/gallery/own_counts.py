"""Counts of steps that a module keeps in a tensor and asks Python about: warm-ups, averages, schedules of a loss."""

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from gallery.case import Small, add, case, from_3_11
from gallery.state import even

DECIDES = {"eager": "a value of a tensor decides what Python does", "data": even}


class Counting(Small):
    """Doubles the loss where `asks` says so, of what is counted before the step and behind it."""

    start = torch.tensor(0)

    def __init__(self, asks=None, count=None):
        super().__init__()
        self.register_buffer("steps", self.start.clone())
        self.asks, self.count = asks, count

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        before = self.asks is not None and self.asks(self.steps)
        self.add()
        return 2 * loss if before or self.doubles() else loss

    def add(self):
        if self.count is None:
            self.steps += 1
        else:
            self.count(self)

    def doubles(self):
        return False


ASKED = {
    "count compared": lambda steps: steps > 5,
    "count that is compared as a number": lambda steps: (steps > 5).item(),
    "count of a few steps that is compared": lambda steps: steps == 3,
    "remainder of a count": lambda steps: steps % 3 == 0,
    "remainder of a count that is no comparison": lambda steps: steps % 3,
    "count computed with": lambda steps: (10 - steps) // 4 + 1 >= 2,
    "count compared twice": lambda steps: steps > 3 and steps % 2 == 0,
    "count that is divided": lambda steps: steps / 3 > 2,
    "rate of a count": lambda steps: (1 + steps) / (10 + steps) < 0.5,
    "root of a count": lambda steps: steps.float().sqrt().mul(0.1) < 0.3,
    "count that is drawn for": lambda steps: steps * torch.rand(()) > 2,
    "larger of a count and a number": lambda steps: max(steps, 7) > 7,
    "truths of a count": lambda steps: torch.logical_and(steps > 3, torch.logical_not(steps > 9)),
}
for name, asks in ASKED.items():
    add(name, lambda asks=asks: Counting(asks), data=even)

NOT_ASKED = {
    "count that is true": lambda steps: not steps,
    "count beside a number of a batch": lambda steps: steps * torch.ones(2).sum() > 9,
}
for name, asks in NOT_ASKED.items():
    add(name, lambda asks=asks: Counting(asks), **DECIDES)

add("count as a number", lambda: Counting(lambda steps: int(steps) % 2), data=even, **from_3_11(DECIDES["eager"]))

COUNTED = {
    "count by twos": lambda module: module.steps.add_(2),
    "count by twos and threes": lambda module: module.steps.add_(2).add_(1, alpha=3),
    "count by the rows of a batch": lambda module: module.steps.add_(8),
    "count down": lambda module: module.steps.sub_(1),
}
for name, count in COUNTED.items():
    add(name, lambda count=count: Counting(lambda steps: steps % 5 > 2, count), data=even)

COUNTED_OTHERWISE = {
    "count that is set": lambda module: module.steps.copy_(module.steps + 1),
    "count through data": lambda module: module.steps.data.add_(1),
    "count that begins again": lambda module: module.steps.add_(1).remainder_(7),
    "count of what is counted": lambda module: module.steps.add_(module.steps),
    "count of what the weights say": lambda module: module.steps.add_((module.net[0].weight > 0).sum()),
}
for name, count in COUNTED_OTHERWISE.items():
    add(name, lambda count=count: Counting(lambda steps: steps % 5 > 2, count), data=even)  # one step at a time


@case(**DECIDES)
class CountThatBeginsAgainBeforeItIsAsked(Counting):
    def add(self):
        self.steps.add_(1).remainder_(7)

    def doubles(self):
        return self.steps > 3


@case(eager="two steps in a row do not do the same", data=even)
class CountThatIsReplaced(Counting):
    def __init__(self):
        super().__init__(lambda steps: steps % 5 > 2)

    def add(self):
        self.steps = self.steps + 1


@case(data=even)
class CountAskedBehindItsStep(Counting):
    def doubles(self):
        return self.steps % 4 == 0


@case(data=even)
class CountAskedBeforeAndBehindItsStep(Counting):
    def __init__(self):
        super().__init__(lambda steps: steps % 3 == 0)

    def doubles(self):
        return self.steps > 10


@case(data=even)
class CountComparedBeforeItsStepAndAskedBehindIt(Counting):
    def training_step(self, batch, batch_idx):
        early = self.steps % 3 == 0
        self.steps += 1
        return 2 * self.loss(batch) if early else self.loss(batch)


@case(**DECIDES)
class CountReadAtTwoMoments(Counting):
    def training_step(self, batch, batch_idx):
        early = self.steps + 0
        self.steps += 1
        return 2 * self.loss(batch) if early + self.steps > 9 else self.loss(batch)


@case(**DECIDES)
class ViewOfACountThatIsReadLater(Counting):
    def training_step(self, batch, batch_idx):
        view = self.steps.view(1)
        self.steps += 1
        return 2 * self.loss(batch) if view % 3 == 0 else self.loss(batch)


@case(**DECIDES)
class CountThatIsComputedWithInPlace(Counting):
    def training_step(self, batch, batch_idx):
        later = self.steps + 1
        later.mul_(2).remainder_(3)
        self.steps += 1
        return 2 * self.loss(batch) if later == 1 else self.loss(batch)


@case(data=even)
class CountThatStartsAnewWhereItIsFull(Counting):
    def training_step(self, batch, batch_idx):
        self.steps += 1
        if self.steps == 5:
            self.steps.zero_()
            return 2 * self.loss(batch)
        return self.loss(batch)


@case(data=even)
class CountThatAnEpochSets(Counting):
    def __init__(self):
        super().__init__(lambda steps: steps % 3 == 0)

    def on_train_epoch_start(self):
        self.steps.fill_(100 * self.current_epoch + 1)


@case(data=even)
class CountOfFloats(Counting):
    start = torch.tensor(0.0)

    def __init__(self):
        super().__init__(lambda steps: steps > 6)


@case(data=even)
class CountInDoublePrecisionThatIsNotWhole(Counting):
    start = torch.tensor(0.1, dtype=torch.float64)

    def __init__(self):
        super().__init__(lambda steps: steps > 6)


@case(data=even)
class RemainderOfACountOfFloats(Counting):
    start = torch.tensor(0.0)

    def __init__(self):
        super().__init__(lambda steps: steps % 3 == 0)


@case(**DECIDES)
class CountOfAByte(Counting):
    start = torch.tensor(250, dtype=torch.uint8)

    def __init__(self):
        super().__init__(lambda steps: steps > 6)


@case(data=even)
class CountLargerThanAFloatHolds(Counting):
    start = torch.tensor((1 << 62) + 1)

    def __init__(self):
        super().__init__(lambda steps: steps % 3 == 0)


@case(**DECIDES)
class CountsThatAreCompared(Counting):
    def __init__(self):
        super().__init__()
        self.register_buffer("others", torch.tensor(9))

    def doubles(self):
        self.others += 2
        return self.steps % 3 == self.others % 3


@case(data=even)
class CountInAList(Counting):
    def __init__(self):
        super().__init__()
        self.counts = [torch.tensor(0)]

    def doubles(self):
        self.counts[0] += 1
        return self.counts[0] % 3 == 0


@case(options={"accumulate_grad_batches": 2})
class CountOfOptimizerSteps(Counting):
    def add(self):
        pass

    def doubles(self):
        return self.steps % 3 == 0

    def on_before_optimizer_step(self, optimizer):
        self.steps += 1


class Averaged(Small):
    """A copy of the network that averages it, as torch has it."""

    options = {"multi_avg_fn": get_ema_multi_avg_fn(0.9)}

    def __init__(self):
        super().__init__()
        self.average = AveragedModel(self.net, **self.options)

    def training_step(self, batch, batch_idx):
        with torch.no_grad():
            target = self.average(batch[0])
        return self.loss(batch) + nn.functional.mse_loss(self(batch[0]), target)

    def on_before_zero_grad(self, optimizer):
        self.average.update_parameters(self.net)


add("average of weights that forgets", Averaged, data=even, inductor=True)


@case(data=even)
class AverageOfEveryThirdStep(Averaged):
    options = {"use_buffers": True}

    def __init__(self):
        super().__init__()
        self.register_buffer("steps", torch.tensor(0))

    def on_before_zero_grad(self, optimizer):
        self.steps += 1
        if self.steps > 4 and self.steps % 3 == 0:
            self.average.update_parameters(self.net)


@case(data=even)
class AverageByAFunctionOfOnesOwn(Averaged):
    options = {"avg_fn": lambda average, weight, count: average + (weight - average) / (count + 1)}


class Average(nn.Module):
    """An average of weights that begins with short memory, as latent diffusion keeps it."""

    def __init__(self, of, decay, dtype):
        super().__init__()
        self.register_buffer("decay", torch.tensor(decay))
        self.register_buffer("updates", torch.tensor(0, dtype=dtype))
        for name, parameter in of.named_parameters():
            self.register_buffer(name.replace(".", ""), parameter.detach().clone())

    def forward(self, of):
        decay = self.decay
        if self.updates >= 0:
            self.updates += 1
            decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        with torch.no_grad():
            held = dict(self.named_buffers())
            for name, parameter in of.named_parameters():
                average = held[name.replace(".", "")]
                average.sub_((1.0 - decay) * (average - parameter))


class Averaged(Small):
    def __init__(self, dtype, decay=0.5):
        super().__init__()
        self.average = Average(self.net, decay, dtype)

    def on_train_batch_end(self, *_):
        self.average(self.net)


for dtype in (torch.int32, torch.int64, torch.float32):
    add(f"average whose memory grows, {dtype}", lambda dtype=dtype: Averaged(dtype), data=even)


class DecayThatChanges(Averaged):
    """A number that stays, and is another one from the second epoch on."""

    def on_train_epoch_end(self):
        self.average.decay.mul_(0.8)


add("average whose longest memory changes", lambda: DecayThatChanges(torch.int32), data=even, options={"max_epochs": 3})


class DecayThatMoves(Averaged):
    def on_train_batch_end(self, *_):
        super().on_train_batch_end()
        self.average.decay.mul_(0.99)


add("average whose longest memory moves", lambda: DecayThatMoves(torch.int32), **DECIDES)


class CountsAndAsksForTheNumber(Small):
    """As ema-pytorch does."""

    def __init__(self):
        super().__init__()
        self.register_buffer("steps", torch.tensor(0))
        self.register_buffer("started", torch.tensor(False))
        self.average = torch.nn.Linear(8, 3).requires_grad_(False)

    def decay(self):
        epoch = (self.steps - 2 - 1).clamp(min=0.0)
        value = 1 - (1 + epoch / 1.0) ** -0.6
        if epoch.item() <= 0:
            return 0.0
        return value.clamp(min=0.1, max=0.9).item()

    def training_step(self, batch, batch_idx):
        return self.loss(batch) + 0.01 * self.average(self.net[:2](batch[0])).square().mean()

    @torch.no_grad()
    def on_train_batch_end(self, outputs, batch, batch_idx):
        step = self.steps.item()
        self.steps += 1
        if step % 2 != 0:
            return
        if step <= 2:
            self.average.load_state_dict(self.net[2].state_dict())
            return
        if not self.started.item():
            self.average.load_state_dict(self.net[2].state_dict())
            self.started.data.copy_(torch.tensor(True))
        for mine, theirs in zip(self.average.parameters(), self.net[2].parameters(), strict=True):
            mine.lerp_(theirs, 1.0 - self.decay())


@case(options={"max_epochs": 4})
class AveragesByACount(CountsAndAsksForTheNumber):
    pass


@case(options={"max_epochs": 3})
class WeighsByACount(CountsAndAsksForTheNumber):
    def training_step(self, batch, batch_idx):
        step = self.steps.item()
        self.log("step", step)
        return self.loss(batch) * (1 + step / 100) if step > 3 else self.loss(batch)

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.steps += 1


@case(options={"max_epochs": 3})
class WeighsByACountThatIsSetBack(WeighsByACount):
    def on_train_epoch_end(self):
        self.steps.zero_()


class DividesByWhatIsLeft(WeighsByACount):
    def training_step(self, batch, batch_idx):
        return self.loss(batch) * (1 / (14 - self.steps.item()))


add("divides by what a count leaves", DividesByWhatIsLeft, raises="division by zero")
