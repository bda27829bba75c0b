"""Parts of a model that only some steps use: their gradients, who clears them, and their counts of steps."""

import random
from functools import partial
from operator import attrgetter

import torch
from lightning.pytorch.utilities import grad_norm
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from gallery.case import Small, add, carried, case


def tasks(sequence):
    """Batches of tasks by their letters, in this order."""

    def load():
        generator, count = torch.Generator().manual_seed(1), 8 * len(sequence)
        x, y = torch.randn(count, 6, generator=generator), torch.randint(0, 3, (count,), generator=generator)
        of = torch.tensor([*map("NABC".index, sequence)]).repeat_interleave(8)
        return DataLoader(TensorDataset(x, y, of), 8)

    return load


class Heads(Small):
    """Batches of task A are for two heads, of B for the second one, of C for the first, and of N for none."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 3), nn.Linear(6, 3)

    def training_step(self, batch, batch_idx):
        x, y, of = batch
        out = self(x)
        if ((of == 1) | (of == 3)).all():
            out = out + self.first(x)
        if ((of == 1) | (of == 2)).all():
            out = out + self.second(x)
        return nn.functional.cross_entropy(out, y)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.02)


# Both heads' counts are equal when each of these has its program, and differ later.
case(size=-1, data=tasks("NN" + "A" * 5 + "B" * 5 + "C" * 5 + "ABABABACACAABBCCA"))(Heads)


@case(size=-1, data=tasks("NN" + "A" * 6 + "ABC" * 24 + "AB" * 12 + "ABACABA"), options={"max_epochs": 1})
class HeadsInTurns(Heads):
    pass


class CountsAnew(torch.optim.Optimizer):
    """Puts another tensor in the place of each count, and asks for its number."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure=None):
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    state = self.state[parameter]
                    state["step"] = state.get("step", torch.zeros(())) + 1
                    parameter -= group["lr"] / state["step"].item() ** 0.5 * parameter.grad
        return loss


@case(size=-1, data=tasks("NN" + "A" * 5 + "B" * 5 + "C" * 5 + "ABABABACACAABBCCA"))
class HeadsWithCountsAnew(Heads):
    def configure_optimizers(self):
        return CountsAnew(self.parameters())


@case(size=-1, data=tasks("NN" + "A" * 6 + "ABC" * 24 + "AB" * 12 + "ABACABA"), options={"max_epochs": 1})
class HeadsInTurnsWithCountsAnew(HeadsWithCountsAnew):
    pass


class ClearsTheNet(torch.optim.SGD):
    """Clears the gradients of a net, and of nothing else."""

    def __init__(self, net, parameters):
        super().__init__(parameters, lr=0.05)
        self.net = net

    def zero_grad(self, set_to_none=True):
        self.net.zero_grad(set_to_none)


@case(size=-1, data=tasks("AB" * 4 + "C" * 6 + "AC" * 5))
class AnOptimizerThatClearsTheNetOnly(Heads):
    """The step clears the head at batches of task B."""

    def training_step(self, batch, batch_idx):
        x, y, of = batch
        out = self(x)
        if (of == 2).all():
            self.first.zero_grad()
        if (of == 1).all():
            out = out + self.first(x)
        return nn.functional.cross_entropy(out, y)

    def configure_optimizers(self):
        return ClearsTheNet(self.net, self.parameters())


@case(size=-1, data=tasks("BA" * 8 + "A" * 10 + "BAAAA"))
class TheNormOfGradientsBeforeTheyAreCleared(Heads):
    """Which are there is what the step before has left."""

    def on_before_zero_grad(self, optimizer):
        self.log("norm", nn.utils.clip_grad_norm_(self.parameters(), 1e9))

    def training_step(self, batch, batch_idx):
        x, y, of = batch
        out = self(x)
        if (of == 1).all():
            out = out + self.first(x)
        return nn.functional.cross_entropy(out, y)


class MeasuresItsHead(Heads):
    """Measures what the step before has left of the first head's gradients, by a function of a library."""

    def measured(self):
        return nn.utils.clip_grad_norm_(self.first.parameters(), 0.5)

    def training_step(self, batch, batch_idx):
        x, y, of = batch
        out = self(x)
        self.log("norm", self.measured())
        if (of == 1).all():
            out = out + self.first(x)
        return nn.functional.cross_entropy(out, y)


# Where both are recorded, there are no such gradients.
case(size=-1, data=tasks("BBBB" + "A" + "B" * 4 + "ABB" * 4))(MeasuresItsHead)


@case(size=-1, data=tasks("BBBB" + "A" + "B" * 4 + "ABB" * 4))
class MeasuresItsHeadByLightnings(MeasuresItsHead):
    def measured(self):
        return sum(value for name, value in grad_norm(self.first, 2).items() if "total" in name)


@case(size=-1, data=tasks("AABBBB" + "A" * 8 + "B" + "N" * 8 + "B" + "AAANNNAAAB" * 6))
class CountsBeginAnewNowAndThen(Heads):
    """Once steps have put other counts in the place of some, the others still write to these."""

    def training_step(self, batch, batch_idx):
        x, y, of = batch
        out = self(x)
        if (of == 2).all():
            for state in self.optimizers().optimizer.state.values():
                state["step"] = torch.zeros(())
        if (of >= 1).all():
            out = out + self.first(x)
        return nn.functional.cross_entropy(out, y)


class LooksAtOldGradients(MeasuresItsHead):
    """Two optimizers of its own: one of its head, one of something else."""

    def __init__(self):
        super().__init__()
        self.of_head = [torch.optim.SGD(self.first.parameters(), lr=0.1)]
        self.of_others = [torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1)]

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


LATE = tasks("NNNN" + "A" + "NNNN" + "ANN" * 4 + "AN" * 10)


@case(size=-1, data=LATE)
class StepsByOldGradients(LooksAtOldGradients):
    def measured(self):
        return 0.0

    def on_before_zero_grad(self, optimizer):
        self.of_head[0].step()


@case(size=-1, data=LATE)
class MeasuresBehindAnOptimizerThatClearsOthers(LooksAtOldGradients):
    def measured(self):
        self.of_others[0].zero_grad()
        return nn.utils.clip_grad_norm_(self.first.parameters(), 0.5)


GRADIENT = attrgetter("grad")


@case(size=-1, data=LATE)
class AsksForGradientsByAFunction(LooksAtOldGradients):
    def measured(self):
        found = map(GRADIENT, self.first.parameters())
        return sum((gradient.norm() for gradient in found if gradient is not None), torch.zeros(()))


@case(size=-1, data=LATE)
class AsksForGradientsByAnotherName(LooksAtOldGradients):
    def measured(self):
        return sum(parameter._grad is not None for parameter in self.first.parameters())


@case(size=-1, data=LATE)
class HasTheOptimizerLookForGradients(LooksAtOldGradients):
    def measured(self):
        optimizer, found = self.optimizers().optimizer, []
        optimizer._init_group(optimizer.param_groups[0], [], found, [])
        return len(found)


AT_RANDOM = tasks("".join(random.Random(3).choices("NABC", k=60)))


class Lion(torch.optim.Optimizer):
    """Looks at gradients by lines of its own, behind those that clear them."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.01})

    @torch.no_grad()
    def step(self, closure=None):
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    mean = self.state[parameter].setdefault("mean", torch.zeros_like(parameter))
                    parameter.add_(torch.sign(0.9 * mean + 0.1 * parameter.grad), alpha=-group["lr"])
                    mean.lerp_(parameter.grad, 0.01)
        return loss


@case(size=-1, data=AT_RANDOM, options={"max_epochs": 4})
class HeadsByAnOptimizerOfItsOwn(Heads):
    def configure_optimizers(self):
        return Lion(self.parameters())


@case(size=-1, data=AT_RANDOM, options={"max_epochs": 4})
class HeadsWhoseGradientsAreLogged(Heads):
    def on_before_optimizer_step(self, optimizer):
        found = [parameter.grad for parameter in self.parameters() if parameter.grad is not None]
        self.log("norm", nn.utils.get_total_norm(found))


class HeadsByHand(Heads):
    """Who clears gradients before anything adds to them."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def clear(self, optimizers):
        for optimizer in optimizers:
            optimizer.zero_grad()

    def training_step(self, batch, batch_idx):
        optimizers = self.optimizers()
        self.clear(optimizers)
        loss = super().training_step(batch, batch_idx)
        self.manual_backward(loss)
        for optimizer in optimizers:
            optimizer.step()

    def configure_optimizers(self):
        heads = [*self.first.parameters(), *self.second.parameters()]
        return torch.optim.Adam(self.net.parameters(), lr=0.02), torch.optim.Adam(heads, lr=0.02)


case(size=-1, data=AT_RANDOM, options={"max_epochs": 4})(HeadsByHand)


@case(size=-1, data=AT_RANDOM, options={"max_epochs": 4})
class HeadsThatTheModuleClears(HeadsByHand):
    def clear(self, optimizers):
        self.zero_grad()


@case(size=-1, data=AT_RANDOM, options={"max_epochs": 4})
class HeadsThatALineClears(HeadsByHand):
    def clear(self, optimizers):
        for parameter in self.parameters():
            parameter.grad = None


@case(size=-1, data=tasks("AABB" * 3 + "ABNC" * 14), options={"max_epochs": 1})
class HeadsWhoseGradientsBecomeZero(HeadsByHand):
    def clear(self, optimizers):
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=False)


@case(size=-1, data=tasks("AABB" * 3 + "ABNC" * 14), options={"max_epochs": 1})
class HeadsThatAreClearedBehindABackwardPass(HeadsByHand):
    """What is left of the heads is added to, and then gone."""

    def training_step(self, batch, batch_idx):
        net, heads = self.optimizers()
        net.zero_grad()
        self.manual_backward(Heads.training_step(self, batch, batch_idx))
        self.log("norm", nn.utils.clip_grad_norm_(self.first.parameters(), 1e9))
        net.step()
        heads.zero_grad()
        self.manual_backward(Heads.training_step(self, batch, batch_idx))
        heads.step()


class AtRandom(Heads):
    def training_step(self, batch, batch_idx):
        x, y, _ = batch
        out = self(x)
        for head in (self.first, self.second):
            if random.random() > 0.4:
                out = out + head(x)
        return nn.functional.cross_entropy(out, y)


@case(size=20, data=tasks("A" * 60))
class AHeadInNoOptimizerThatIsClearedNowAndThen(AtRandom):
    def on_before_optimizer_step(self, optimizer):
        if random.random() < 0.5:
            self.second.zero_grad()

    def configure_optimizers(self):
        return torch.optim.Adam([*self.net.parameters(), *self.first.parameters()], lr=0.02)


class ClearsEveryOtherTime(torch.optim.SGD):
    times = 0

    def zero_grad(self, set_to_none=True):
        self.times += 1
        if self.times % 2:
            super().zero_grad(set_to_none)


@case(size=20, data=tasks("A" * 60), **carried())
class AnOptimizerThatClearsEveryOtherTime(Heads):
    def configure_optimizers(self):
        return ClearsEveryOtherTime(self.parameters(), lr=0.02)


def of_sizes(*sizes):
    """Batches of so many samples each."""

    def load():
        generator = torch.Generator().manual_seed(1)
        return DataLoader([some(size, generator) for size in sizes], batch_size=None)

    def some(size, generator):
        return torch.randn(size, 6, generator=generator), torch.randint(0, 3, (size,), generator=generator)

    return load


class HeadsBySize(Heads):
    """Batches of 4 are for the first head, of 5 for the second one, others for none."""

    def training_step(self, batch, batch_idx):
        x, y = batch
        out = self(x)
        if len(x) in (4, 5):
            out = out + (self.first if len(x) == 4 else self.second)(x)
        return nn.functional.cross_entropy(out, y)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05)


# The first program is made before any step has cleared the second head's gradients.
case(size=20, data=of_sizes(*[4] * 6, *[5] * 6, 6, 4, 4, 5, 5, 4, 5, 4))(HeadsBySize)


@case(
    size=20,
    data=of_sizes(*[4] * 12, *[5] * 12, 6, 6, 4, 4, 5, 5, 4, 5, 4, 5),
    options={"accumulate_grad_batches": 2},
)
class HeadsBySizeOfAccumulatedGradients(HeadsBySize):
    pass


@case(size=20, data=of_sizes(*[4, 5] * 30))
class OptimizersThatAreSteppedInAnotherOrder(HeadsBySize):
    """Their counts are the same; which is asked first is not."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        optimizers = self.optimizers()
        loss = self.loss(batch) + self.second(batch[0]).square().mean()
        for optimizer in optimizers:
            optimizer.zero_grad()
        self.manual_backward(loss)
        for optimizer in optimizers if len(batch[0]) == 4 else reversed(optimizers):
            optimizer.step()

    def configure_optimizers(self):
        return torch.optim.Adam(self.net.parameters(), lr=0.01), torch.optim.Adam(self.second.parameters(), lr=0.01)


@case(size=-1, data=AT_RANDOM, options={"max_epochs": 4}, eager="`first.weight.requires_grad`")
class AHeadThatIsFrozenEveryFewSteps(Heads):
    """Programs run in between, and none of them for long."""

    def training_step(self, batch, batch_idx):
        x, y, _ = batch
        self.first.requires_grad_(batch_idx % 10 < 5)
        return nn.functional.cross_entropy(self(x) + self.first(x), y)


@case(size=-1, data=AT_RANDOM, options={"max_epochs": 4})
class AHeadThatIsFrozenInSomeEpochs(Heads):
    def training_step(self, batch, batch_idx):
        x, y, _ = batch
        self.first.requires_grad_(self.current_epoch % 2 == 0)
        return nn.functional.cross_entropy(self(x) + self.first(x), y)


@case(size=-1, data=tasks("N" * 12 + "ACNNN" + "ACN" * 14 + "ACAN" + "NNNACANNNN"))
class PartsThatAreSteppedOnceMore(Heads):
    """Each is ahead of the other now and then, and behind both they have as many steps again."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)

    def goes(self, loss):
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()

    def training_step(self, batch, batch_idx):
        x, y, of = batch
        self.goes(nn.functional.cross_entropy(self(x) + self.first(x), y))
        if (of == 1).all():
            self.goes(nn.functional.cross_entropy(self(x), y))
        if (of == 3).all():
            self.goes(nn.functional.cross_entropy(self.first(x), y))


class Keeps(Small):
    """Keeps something of its last step, which some steps leave in another form; `looks` decides by that."""

    WHICH = "some"

    def __init__(self, looks, form):
        super().__init__()
        self.looks, self.form = looks, form
        self.last = torch.zeros(8)

    def is_rare(self, batch, batch_idx):
        return batch_idx % 5 == 4

    def training_step(self, batch, batch_idx):
        out = self(batch[0])
        scale = 1.0 if self.looks(self.last) else 2.0
        kept = out.detach()[:, 0].clone()
        self.last = self.form(kept) if self.is_rare(batch, batch_idx) else kept
        return scale * nn.functional.cross_entropy(out, batch[1])


LONG = tasks("N" * 60)
FORMS = {
    "sizes": (lambda last: len(last) == 8, lambda kept: kept[:4].clone()),
    "types": (lambda last: last.dtype == torch.float32, lambda kept: kept.long()),
    "strides": (lambda last: last.is_contiguous(), lambda kept: torch.stack([kept, kept], 1)[:, 0]),
}


class KeepsByBatch(Keeps):
    """What the batch holds tells which steps these are."""

    WHICH = "now and then"

    def is_rare(self, batch, batch_idx):
        return bool((batch[1] == 0).sum() > 3)


for name, (looks, form) in FORMS.items():
    for kind in (Keeps, KeepsByBatch):
        made = partial(kind, looks, form)
        add(f"looks at {name} of what {kind.WHICH} steps leave", made, size=-1, data=LONG, options={"max_epochs": 4})


@case(size=-1, data=LONG, options={"max_epochs": 4}, eager="has a gradient of its own")
class WeightsThatSwapPlaces(Small):
    """The momentum of each goes with it."""

    EVERY = 10

    def __init__(self):
        super().__init__()
        self.other = nn.Linear(6, 3)
        self.one = nn.Linear(6, 3)

    def changes(self):
        self.one.weight, self.other.weight = self.other.weight, self.one.weight

    def training_step(self, batch, batch_idx):
        if batch_idx % self.EVERY == self.EVERY - 1:
            self.changes()
        x, y, _ = batch
        return nn.functional.cross_entropy(self.one(x), y) + 0.1 * self.other(x).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


@case(size=-1, data=LONG, options={"max_epochs": 4}, eager="has a gradient of its own")
class WeightsThatSwapPlacesAgainAndAgain(WeightsThatSwapPlaces):
    EVERY = 3

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


@case(size=-1, data=LONG, options={"max_epochs": 4}, eager="keep changing")
class AWeightThatIsMadeAnewEveryFewSteps(WeightsThatSwapPlaces):
    EVERY = 5

    def changes(self):
        self.one.weight = nn.Parameter(self.one.weight.detach().clone())


class KeepsNorms(torch.optim.SGD):
    """Keeps norms of gradients under keys that are no parameters."""

    def step(self, closure=None):
        out = super().step(closure)
        gradients = [parameter.grad for group in self.param_groups for parameter in group["params"]]
        self.state["all"]["norm"] = torch.stack([gradient.norm() for gradient in gradients]).norm()
        self.state["first"] = gradients[0].norm()
        return out


@case()
class AnOptimizerThatKeepsWhatIsOfNoParameter(Small):
    def configure_optimizers(self):
        return KeepsNorms(self.parameters(), lr=0.02)


class KeepsAList(torch.optim.SGD):
    """Keeps what no slot holds."""

    def step(self, closure=None):
        out = super().step(closure)
        self.state["norms"] = [parameter.grad.norm() for parameter in self.param_groups[0]["params"]]
        return out


@case(eager="changes Python state: `optimizer 0 state 'norms'`")
class AnOptimizerThatKeepsAListOfNoParameter(Small):
    def configure_optimizers(self):
        return KeepsAList(self.parameters(), lr=0.02)


class KeepsByPairs(torch.optim.SGD):
    """Its keys are pairs of a parameter and a name, which look in text as the parameter's numbers do."""

    def step(self, closure=None):
        out = super().step(closure)
        for parameter in self.param_groups[0]["params"]:
            kept = self.state[parameter, "mean"]
            kept.setdefault("of", torch.zeros_like(parameter)).mul_(0.9).add_(parameter.grad)
        return out


@case()
class AnOptimizerThatKeepsByPairs(Small):
    def configure_optimizers(self):
        return KeepsByPairs(self.parameters(), lr=0.02)


@case(size=-1, data=tasks("N" * 120), inductor=True)
class ABufferThatIsReplacedNowAndThen(Small):
    """Python's own code that logs goes through reaches past attributes, and sets none."""

    def __init__(self):
        super().__init__()
        self.register_buffer("target", torch.zeros(8, 6))

    def training_step(self, batch, batch_idx):
        x, y, _ = batch
        if batch_idx % 10 == 0:
            self.target = self.net[0].weight.detach().clone()
        loss = nn.functional.cross_entropy(self(x), y) + (self.net[0](x) - x @ self.target.T).square().mean()
        self.log("loss", loss)
        return loss
