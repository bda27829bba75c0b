"""Random numbers that no program can draw: other generators, decisions of Python's, hooks on the host."""

import pickle
import random
from random import uniform

import numpy as np
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from gallery.case import Small, case, from_3_11
from gallery.randomness import Dropping
from parity import loader


@case(eager="draws from a generator of its own", line="generator=self.generator")
class GeneratorOfTheModules(Small):
    def __init__(self):
        super().__init__()
        self.generator = torch.Generator().manual_seed(3)

    def training_step(self, batch, batch_idx):
        return self.loss((batch[0] + 0.1 * torch.randn(6, generator=self.generator), batch[1]))


@case(eager="torch.manual_seed()", line="torch.manual_seed(4)")
class SeededInEachStep(Dropping):
    def training_step(self, batch, batch_idx):
        torch.manual_seed(4)
        return self.loss(batch)


@case(eager="`torch.initial_seed()` is called", line="torch.initial_seed()")
class SeedThatIsRead(Small):
    """It is the same in all steps of an epoch."""

    def on_train_epoch_start(self):
        torch.manual_seed(self.current_epoch + 1)

    def training_step(self, batch, batch_idx):
        return self.loss(batch) * torch.initial_seed()


@case(eager="`Generator.initial_seed()` is called", line="initial_seed()")
class SeedOfAGeneratorOfTheModules(Small):
    def __init__(self):
        super().__init__()
        self.generator = torch.Generator()

    def on_train_epoch_start(self):
        self.generator.manual_seed(self.current_epoch + 1)

    def training_step(self, batch, batch_idx):
        return self.loss(batch) * self.generator.initial_seed()


@case(eager="`torch.cuda.memory_stats()` is called", line="max_memory_allocated()")
class MemoryThatIsLogged(Small):
    def training_step(self, batch, batch_idx):
        self.log("peak", float(torch.cuda.max_memory_allocated()))
        return self.loss(batch)


@case(eager="a random generator is set back, and something else is drawn than before")
class DrawsThatAreUndone(Dropping):
    def training_step(self, batch, batch_idx):
        with torch.random.fork_rng(devices=[]):
            noise = torch.randn(6)
        return self.loss((batch[0] + 0.1 * noise, batch[1]))


class Scaled(Small):
    """The loss is scaled by a number from elsewhere."""

    def training_step(self, batch, batch_idx):
        return self.loss(batch) * (1 + 0.1 * self.number())


@case(eager="global random generator is drawn from", line="uniform(")
class PythonsGeneratorByAName(Scaled):
    def number(self):
        return uniform(0.0, 1.0)


@case(eager="global random generator is drawn from", line="random(3)")
class ArrayOfNumpys(Scaled):
    def number(self):
        return float(np.random.random(3).sum())


@case(eager="global random generator is drawn from", line="shuffle(")
class ListThatIsShuffled(Scaled):
    def number(self):
        items = [1, 2, 3]
        random.shuffle(items)
        return items[0]


@case(eager="global random generator is drawn from", line="choice(")
class OneOfSomeObjects(Scaled):
    def number(self):
        return len(random.choice(["a", "bb"]))


@case(eager="global random generator is drawn from", line="random.random()")
class MoreThanAFewNumbers(Scaled):
    def number(self):
        return sum(random.random() for _ in range(40))


@case(**from_3_11("is needed as a plain number"))
class NumberThatIsMadePlain(Scaled):
    def number(self):
        return float(np.random.beta(0.4, 0.4))


@case(eager="global random generator is drawn from", line="get_state()")
class StateOfNumpysThatIsRead(Scaled):
    def number(self):
        return np.random.rand() + 1e-9 * np.random.get_state()[1][0]


@case(eager="global random generator is drawn from", line="uniform(0.5")
class DrawnInWhatIsComputedTwice(Small):
    """Plain autograd keeps the number itself, so that the second time ends before the draw."""

    def training_step(self, batch, batch_idx):
        half = lambda x: self.net[0](x) * random.uniform(0.5, 1.5)  # noqa: E731
        hidden = checkpoint(half, batch[0], use_reentrant=False, preserve_rng_state=False)
        return nn.functional.cross_entropy(self.net[2](hidden), batch[1])


@case(eager="global random generator is drawn from", line="self.draw()")
class FunctionThatIsKept(Scaled):
    """It is the generator's own again behind the step."""

    def __init__(self):
        super().__init__()
        self.draw = None

    def number(self):
        if self.draw is None:
            self.draw = random.random
        return self.draw()

    def on_train_end(self):
        assert self.draw is random.random or self.draw == random.random
        assert pickle.loads(pickle.dumps(self.draw)) is not None


@case(eager="global random generator is drawn from", line="seed(")
class SeededByNumpyInEachStep(Scaled):
    def number(self):
        np.random.seed(3)
        return np.random.rand()


@case(eager="changes Python state")
class GeneratorOfPythonsInAnAttribute(Scaled):
    def __init__(self):
        super().__init__()
        self.random = random.Random(3)

    def number(self):
        return 10.0 if self.random.random() < 0.05 else 0.0


@case(eager="changes Python state")
class GeneratorOfNumpysInAnAttribute(Scaled):
    def __init__(self):
        super().__init__()
        self.random = np.random.default_rng(3)

    def number(self):
        return 10.0 if self.random.random() < 0.05 else 0.0


@case(eager="changes Python state")
class GeneratorOfNumpysInTheClass(Scaled):
    """Made anew by each module, so that both trainings begin alike."""

    def __init__(self):
        super().__init__()
        type(self).random = np.random.default_rng(3)

    def number(self):
        return 10.0 if self.random.random() < 0.05 else 0.0


@case(eager="changes Python state")
class GeneratorOfPythonsInTheClass(GeneratorOfNumpysInTheClass):
    def __init__(self):
        super().__init__()
        type(self).random = random.Random(3)


@case(eager="a number that the step draws from torch", line="if torch.rand(1)", data=lambda: loader(60, last=8))
class LayersLeftOutAtRandom(Small):
    """Stochastic depth, decided by Python."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))

    def forward(self, x):
        for block in self.blocks:
            if torch.rand(1) < 0.7:
                x = x + torch.tanh(block(x))
        return self.net(x)


@case()
class LayersLeftOutByAMask(LayersLeftOutAtRandom):
    def forward(self, x):
        for block in self.blocks:
            x = x + torch.tanh(block(x)) * (torch.rand(1) < 0.7)
        return self.net(x)


@case(eager="a value of a tensor decides", line="int(torch.randint")
class SizeDrawnAtRandom(Small):
    """A crop of a random width."""

    def forward(self, x):
        width = int(torch.randint(3, 7, (1,)))
        return self.net(nn.functional.pad(x[:, :width], (0, 6 - width)))


# -- draws on the host, in the middle of a sink -----------------------------------------------------------------------


@case()
class DrawnInTheTransferHook(Dropping):
    """The generator goes from hook to step and back at each batch."""

    def on_after_batch_transfer(self, batch, dataloader_idx):
        return batch[0] + 0.1 * torch.randn_like(batch[0]), batch[1]


@case()
class DrawnInTheTransferHookWithPython(Dropping):
    def on_after_batch_transfer(self, batch, dataloader_idx):
        return batch[0] * random.choice([0.5, 1.0]), batch[1]


@case(data=loader)
class NumberSetByTheTransferHook(Scaled):
    """A hook on the host looks at the batch and decides, now and then, what the step does."""

    rare = False

    def on_after_batch_transfer(self, batch, dataloader_idx):
        self.rare = bool(batch[0].max() > 2.3)
        return batch

    def number(self):
        return 10.0 if self.rare else 0.0


@case()
class TensorKeptByTheTransferHook(Scaled):
    """The hook puts a tensor into an attribute, a new one for each batch."""

    def on_after_batch_transfer(self, batch, dataloader_idx):
        self.weight = torch.rand(())
        return batch

    def number(self):
        return self.weight


@case()
class TensorKeptByTheTransferHookNowAndThen(TensorKeptByTheTransferHook):
    calls = 0

    def on_after_batch_transfer(self, batch, dataloader_idx):
        self.calls += 1
        if self.calls % 6 == 1:
            self.weight = torch.rand(())
        return batch
