"""Numbers of tensors' values that steps keep in attributes, and compute with (from Python 3.11 on)."""

import math

import lightning as L
import numpy as np
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

from gallery.case import Small, add, case
from gallery.state import even
from parity import loader

DECIDES = {"eager": "a value of a tensor decides", "data": even}
PLAINLY = {"eager": "is needed as a plain number", "data": even}


class Keeps(Small):
    """`keep` says what becomes of the loss's number."""

    def __init__(self):
        super().__init__()
        self.last, self.mean, self.best, self.right = None, 0.0, float("inf"), 0

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        return loss * self.keep(loss, batch, batch_idx)

    def keep(self, loss, batch, batch_idx):
        self.last = loss.item()
        return 1


add("last number", Keeps, data=even, inductor=True)
add("last number, in windows", Keeps, data=even, options={"accumulate_grad_batches": 2})


@case(data=even, inductor=True)
class MeanThatMoves(Keeps):
    def keep(self, loss, batch, batch_idx):
        self.mean = 0.9 * self.mean + 0.1 * loss.item()
        self.log("mean", self.mean)
        return 1

    def on_train_epoch_end(self):
        self.log("at the end", self.mean)


add("mean that moves, in windows", MeanThatMoves, data=even, options={"accumulate_grad_batches": 2})


class CountsTokens(Keeps):
    """Computes with whole numbers of which nothing says how large they are."""

    most = 5

    def keep(self, loss, batch, batch_idx):
        tokens = batch[1].sum()
        tokens = torch.where(tokens % 4 == 1, self.most, tokens).item()
        self.right += tokens
        return 1 + tokens / 100

    def on_train_epoch_end(self):
        assert type(self.right) is int
        self.log("low digits", float(self.right % 1000))


class CountsManyTokens(CountsTokens):
    """More than any program computes with, now and then: such steps run as they are."""

    most = (1 << 40) + 1


add("counts tokens", CountsTokens, data=even, inductor=True)
add("counts many tokens", CountsManyTokens, data=even)


@case(data=even)
class MeanThatBeginsWithTheFirst(Keeps):
    """And does so in each epoch."""

    def keep(self, loss, batch, batch_idx):
        number = loss.item()
        self.last = number if self.last is None else 0.9 * self.last + 0.1 * number
        return 1

    def on_train_epoch_end(self):
        self.log("mean", self.last)
        self.last = None


@case(data=even, inductor=True)
class LossThatIsDividedByItsMean(Keeps):
    def keep(self, loss, batch, batch_idx):
        self.mean = 0.9 * self.mean + 0.1 * loss.item()
        return 1

    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) / (1 + self.mean)


@case(data=even)
class MeanInAFunction(Keeps):
    def track(self, value, momentum=0.9):
        self.mean = momentum * self.mean + (1 - momentum) * value
        return self.mean

    def keep(self, loss, batch, batch_idx):
        return 1 + 0.1 * self.track(value=loss.item())


class AverageMeter:
    """As many have it."""

    def __init__(self):
        self.reset()

    def reset(self):
        self.val = 0
        self.avg = 0
        self.sum = 0
        self.count = 0

    def update(self, val, n=1):
        self.val = val
        self.sum += val * n
        self.count += n
        self.avg = self.sum / self.count


@case(data=even, inductor=True)
class Meter(Keeps):
    def __init__(self):
        super().__init__()
        self.meter, self.correct = AverageMeter(), AverageMeter()

    def training_step(self, batch, batch_idx):
        out = self(batch[0])
        loss = nn.functional.cross_entropy(out, batch[1])
        self.meter.update(loss.item(), batch[0].size(0))
        self.correct.update((out.argmax(1) == batch[1]).sum().item() / len(batch[1]), len(batch[1]))
        self.log("loss", self.meter.avg)
        return loss

    def on_train_epoch_end(self):
        self.log("epoch", self.meter.avg)
        self.log("correct", self.correct.avg)
        assert self.meter.count in (0, 128)
        self.meter.reset()


@case(data=even)
class SumThatIsRead(Keeps):
    def keep(self, loss, batch, batch_idx):
        self.mean += loss.item()
        self.log("mean", self.mean / (batch_idx + 1))
        return 1


@case(data=even)
class NumberOfTheStepBefore(Keeps):
    """The one is put into the other before it is another one."""

    def keep(self, loss, batch, batch_idx):
        self.best, self.mean = self.mean, loss.item()
        return 1 + 0.1 * abs(1) * self.best


@case(data=even)
class NumbersOfTwoStepsBefore(Keeps):
    def keep(self, loss, batch, batch_idx):
        before = self.mean
        self.mean = self.best
        self.best = loss.item()
        return 1 + 0.01 * before if batch_idx > 1 else 1


@case(data=even)
class TwoOfOneNumber(Keeps):
    def keep(self, loss, batch, batch_idx):
        self.mean = self.best = loss.item()
        return 1


@case(data=even)
class WholeNumbers(Keeps):
    def keep(self, loss, batch, batch_idx):
        right = (self(batch[0]).argmax(1) == batch[1]).sum()
        self.right = right.item()
        self.mean = right.item() / len(batch[1])
        return 1 + self.right / 100

    def on_train_epoch_end(self):
        assert type(self.right) is int


@case(data=even)
class WholeNumbersThatAreAddedUp(Keeps):
    """And divided by what Python counts."""

    def __init__(self):
        super().__init__()
        self.seen = 0

    def keep(self, loss, batch, batch_idx):
        self.right += self(batch[0]).argmax(1).eq(batch[1]).sum().item()
        self.seen += len(batch[1])
        self.log("accuracy", 100 * self.right / self.seen)
        return 1


@case(data=even)
class WholeNumbersOfWhichNobodyKnowsTheSize(Keeps):
    def keep(self, loss, batch, batch_idx):
        self.right = batch[1].max().item()
        self.mean = 0.5 * self.right
        return 1


def grows():
    """Batches whose numbers are too large for float64 later."""
    batches = list(even())
    for index, (x, y) in enumerate(batches):
        yield x, y, torch.full((8,), 3 + 19 * index**2)


@case(eager="a value of a tensor", data=lambda: DataLoader([*grows()], batch_size=None))
class WholeNumbersThatGrow(Keeps):
    def training_step(self, batch, batch_idx):
        number = batch[2].max().item()
        self.mean = (number * number * number * number * number * number * number % 1000) / 1000
        return self.loss(batch[:2]) * (1 + self.mean)


@case(data=even)
class EachThirdStepKeepsItsNumber(Keeps):
    def keep(self, loss, batch, batch_idx):
        if batch_idx % 3 == 0:
            self.mean = loss.item()
        return 1 + 0.1 * self.mean


@case(data=even)
class NumberOfAnotherTypeEachTime(Keeps):
    def keep(self, loss, batch, batch_idx):
        self.mean = loss.item() if batch_idx % 2 else 1
        return 1


@case(data=even)
class MeterThatIsResetEveryFewSteps(Keeps):
    def __init__(self):
        super().__init__()
        self.meter = AverageMeter()

    def keep(self, loss, batch, batch_idx):
        self.meter.update(loss.item(), len(batch[1]))
        if batch_idx % 5 == 4:
            self.log("of five", self.meter.avg)
            self.meter.reset()
        return 1


@case(data=even)
class NumberThatIsTheSameAgain(Keeps):
    """It is kept, although nothing shows that it changes."""

    def keep(self, loss, batch, batch_idx):
        self.right = (batch[1] > 99).sum().item()
        self.mean = 0.0 * loss.item()
        return 1


@case(data=even)
class NumberByAFunctionWhoseResultIsDropped(Keeps):
    def put(self, value):
        self.last = value
        return value

    def keep(self, loss, batch, batch_idx):
        self.put(loss.item())
        return 1


@case(data=even)
class LossByItsOwnNumber(Keeps):
    def keep(self, loss, batch, batch_idx):
        return 1 + torch.clamp(loss.detach() / (2 + 3 * loss.item()), max=loss.item() + 0.01)


@case(data=even)
class NumberThatIsComputedWith(Keeps):
    def keep(self, loss, batch, batch_idx):
        self.mean = (self.mean - loss.item()) * 0.5 / 3 - -loss.item() * batch_idx
        return 1


@case(data=even)
class NumberOfAPart(Small):
    class Part(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = 1.0

        def forward(self, x):
            out = x / self.scale
            self.scale = 0.9 * self.scale + 0.1 * x.detach().abs().max().item()
            return out

    def __init__(self):
        super().__init__()
        self.part = self.Part()

    def training_step(self, batch, batch_idx):
        return self.loss((self.part(batch[0]), batch[1]))


@case(data=even)
class NumberThatAHookOfTheStepReads(Keeps):
    def on_before_optimizer_step(self, optimizer):
        self.mean = 0.5 * self.mean + 0.5 * self.net[0].weight.grad.norm().item()
        self.log("gradient", self.mean)

    def optimizer_step(self, epoch, batch_idx, optimizer, closure=None):
        optimizer.step(closure=closure)
        self.mean = self.mean * 2


@case(data=even)
class NumberByHand(Keeps):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers()
        loss = self.loss(batch)
        optimizer.zero_grad()
        self.manual_backward(loss * (1 + self.mean))
        optimizer.step()
        self.mean = 0.9 * self.mean + 0.1 * loss.item()


class Reads(L.Callback):
    """Keeps what it finds behind each batch, and sets it to something else now and then."""

    def __init__(self):
        self.found = []

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.found.append(module.mean)
        if batch_idx == 9:
            module.mean = 5.0

    def on_train_end(self, trainer, module):
        assert len(set(self.found)) > 4
        module.last = sum(self.found)


add("number that a callback reads and sets", MeanThatMoves, data=even, size=1, options={"callbacks": lambda: [Reads()]})


class Validates(MeanThatMoves):
    """Reads it in validation, and sets it there."""

    def validation_step(self, batch, batch_idx):
        self.log("kept", self.mean)
        self.mean = self.mean / 2

    def val_dataloader(self):
        return even()


add("number that validation reads and sets", Validates, data=even, options={"val_check_interval": 8})


# -- what decides -----------------------------------------------------------------------------------------------------


def long():
    """Batches of which some make another loss than the others do."""
    return loader(batches=40, last=8)


@case(data=long, size=10, inductor=True)
class NumberThatDecides(Keeps):
    def keep(self, loss, batch, batch_idx):
        if loss.item() < self.best - 0.4:
            self.best = loss.item()
        return 1 if self.best > 0.9 else 2

    def on_train_epoch_end(self):
        self.log("best", self.best)


add("number that decides, in windows", NumberThatDecides, data=long, size=10, options={"accumulate_grad_batches": 2})


@case(data=long, size=10)
class KeptNumberThatDecides(Keeps):
    def keep(self, loss, batch, batch_idx):
        self.mean = 0.9 * self.mean + 0.1 * loss.item()
        return 2 if self.mean > 1 else 1


@case(data=long, size=10)
class LeastLoss(Keeps):
    def keep(self, loss, batch, batch_idx):
        self.best = min(self.best, loss.item() + 10 * (batch_idx > 2))
        return 1

    def on_train_epoch_end(self):
        self.log("least", self.best)


@case(data=long, size=10)
class NumbersBetweenOthers(Keeps):
    def keep(self, loss, batch, batch_idx):
        number = loss.item()
        self.log("change", 0.0 if self.last is None else abs(number - self.last))
        is_usual = 0.2 < number <= 1.35 and number != self.mean
        self.last = number
        return 1 if is_usual else 0.1


@case(data=long, size=10)
class NumberThatMathLooksAt(Keeps):
    def keep(self, loss, batch, batch_idx):
        number = (loss - 1.45).clamp(max=0).log().item()
        self.right += not math.isfinite(number)
        if math.isnan(number) or math.isinf(number):
            return 1
        self.log("found", number)
        return 0.1


@case(data=long, size=10, inductor=True)
class Perplexity(Keeps):
    def keep(self, loss, batch, batch_idx):
        self.mean = math.exp(loss.item())
        self.log("perplexity", self.mean)
        self.log("root", math.sqrt(loss.item()) + math.log(self.mean))
        return 1


@case(data=long, size=10, raises="math range error")
class TooLargeForMath(Keeps):
    """In a late step."""

    def keep(self, loss, batch, batch_idx):
        self.mean = math.exp(loss.item() * (1000 if batch_idx == 33 else 1))
        return 1


@case(data=long, size=10)
class TooLargeForMathNowAndThen(Keeps):
    """And handled."""

    def keep(self, loss, batch, batch_idx):
        try:
            self.mean = math.exp(400 * loss.item())
        except OverflowError:
            self.mean = float("inf")
        return 1


@case(data=long, size=10)
class NumberThatDivides(Keeps):
    def keep(self, loss, batch, batch_idx):
        self.mean = 1.0 / loss.item() + batch_idx / (1 + loss.item())
        return 1


@case(data=long, size=10)
class NumberThatDividesAndIsZeroInALateStep(Keeps):
    def keep(self, loss, batch, batch_idx):
        try:
            self.mean = 1.0 / (0.0 * loss.item() + (batch_idx != 33))
        except ZeroDivisionError:
            self.mean = -1.0
        self.log("quotient", self.mean)
        return 1


@case(data=long, size=10)
class NumberWithAPower(Keeps):
    def keep(self, loss, batch, batch_idx):
        self.mean = loss.item() ** 2 + loss.item() ** 0.5 + 2 ** loss.item() + loss.item() ** loss.item()
        return 1


@case(data=long, size=10)
class PowersThatAreCompared(Keeps):
    """Of whole numbers, which are exact."""

    def keep(self, loss, batch, batch_idx):
        many = (batch[0][:, 0] + 0 * loss > 0.9).sum().item()
        self.right += 2.0**many >= 8.0
        return 0.5 if 0.5**many <= 0.125 else 1


@case(data=long, size=10)
class NumberBesideTruths(Keeps):
    def keep(self, loss, batch, batch_idx):
        self.mean = loss.item() - True + (batch_idx > 3) - (batch[1] > 1).sum().item()
        return 1 if (batch_idx > 3) - loss.item() < 0.8 else 2


@case(data=long, size=10)
class NumberThatASomewhatLongerLineDecidesBy(Keeps):
    def keep(self, loss, batch, batch_idx):
        if (number := loss.item()) > 50 or (number > 1.3 and self.mean > 9) or np.isnan(number):
            raise ValueError(f"{number} in {batch_idx}, {float(number)}")
        assert number
        self.mean = number > 0.5 and number
        return 1


class InHalfPrecision(Keeps):
    """Where Inductor computes with what has not been rounded yet."""

    def keep(self, loss, batch, batch_idx):
        number = (1.0 + 0.125 * batch[1].sum() + 0 * loss).to(torch.bfloat16) * 1.0039
        self.last = number.item()
        return 0.5 if number.item() >= 2.25 else 1


add("number of half precision that decides", InHalfPrecision, data=long, size=10, inductor=True)


@case(data=long, size=10)
class NumberOfTheBatch(Keeps):
    def keep(self, loss, batch, batch_idx):
        most = batch[0].abs().max().item()
        self.best = min(self.best, most)
        return 0.5 if most > 2.6 else 1 + 0.1 * math.sqrt(self.best)


@case(data=long, size=10)
class NumberOfWeights(Keeps):
    """Found before the step changes them."""

    def keep(self, loss, batch, batch_idx):
        norm = self.net[0].weight.norm().item()
        self.mean = max(self.mean, norm)
        return 1 if norm < 2 * self.mean else 2


@case(data=long, size=10)
class NumberThatEndsALoop(Keeps):
    def keep(self, loss, batch, batch_idx):
        rounds = 0
        while loss.item() / 2**rounds > 0.5:
            rounds += 1
        return 1 + 0.1 * rounds


@case(data=long, size=10, options={"gradient_clip_val": 0.5})
class NumberInAHookThatDecides(Keeps):
    def on_before_optimizer_step(self, optimizer):
        norm = nn.utils.get_total_norm([p.grad for p in self.parameters()]).item()
        if norm > 3 * self.mean and self.mean > 0:
            optimizer.zero_grad()
        self.mean = norm if not self.mean else 0.9 * self.mean + 0.1 * norm


# -- what needs the number itself -------------------------------------------------------------------------------------


@case(line="self.mean = loss.item() // 0.1", data=even, eager="is needed as a plain number")
class NumberThatIsDividedWithoutARest(Keeps):
    """Inductor computes it by a quotient, which may be rounded up."""

    def keep(self, loss, batch, batch_idx):
        self.mean = loss.item() // 0.1
        return 1


@case(line='f"{self.mean', **PLAINLY)
class KeptNumberInAText(Keeps):
    def keep(self, loss, batch, batch_idx):
        self.mean = 0.9 * self.mean + 0.1 * loss.item()
        return len(f"{self.mean:.3f}")


@case(eager="to what is no number", data=even)
class NumberOrText(Keeps):
    def keep(self, loss, batch, batch_idx):
        self.mean = loss.item() if batch_idx % 2 else "none"
        return 1


class ScalesInACheckpoint(Keeps):
    """The part that runs again keeps another number; what was computed with the first one is what counts."""

    def scaled(self, x):
        hidden = torch.tanh(self.net[0](x))
        self.mean = 0.9 * self.mean + hidden.square().mean().item()
        return hidden * (1 + self.mean)

    def training_step(self, batch, batch_idx):
        hidden = checkpoint(self.scaled, batch[0], use_reentrant=False, preserve_rng_state=False)
        return nn.functional.cross_entropy(self.net[2](hidden), batch[1])


add("kept number in a checkpoint", ScalesInACheckpoint, line="hidden * (1", **PLAINLY)
