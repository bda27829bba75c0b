"""Indexing by masks: by those that are the same in each step, and by others."""

import torch
from torch import nn

from gallery.case import Small, case
from gallery.state import even

DEPENDS = "gives a shape that depends on the data"


class Contrasts(Small):
    """Similarities of all rows but with themselves, as contrastive losses have them."""

    def mask(self, rows):
        return ~torch.eye(rows, dtype=torch.bool)

    def training_step(self, batch, batch_idx):
        rows = nn.functional.normalize(self(batch[0]), dim=1)
        others = (rows @ rows.t())[self.mask(len(rows))].view(len(rows), -1)
        return nn.functional.cross_entropy(others / 0.5, torch.zeros(len(rows), dtype=torch.long))


case()(Contrasts)


@case()
class ContrastsByAMaskThatIsWrittenTo(Contrasts):
    def mask(self, rows):
        return torch.ones(rows, rows).fill_diagonal_(0).bool()


@case()
class ContrastsByARolledMask(Contrasts):
    def mask(self, rows):
        return torch.eye(rows, dtype=torch.bool).logical_not().roll(1, 0)


@case(eager=DEPENDS, line="others = (rows @ rows.t())[self.mask(len(rows))]")
class ContrastsByChance(Contrasts):
    def mask(self, rows):
        return torch.rand(rows, rows).argsort(1) > 0


class Picks(Small):
    def __init__(self):
        super().__init__()
        self.register_buffer("kept", torch.tensor([True, False, True]))
        self.table = torch.arange(24).view(8, 3) % 5 < 2

    def training_step(self, batch, batch_idx):
        out = self(batch[0])
        parts = [
            out[:, self.kept],
            out[self.table],
            out.masked_select(self.table),
            out[torch.arange(len(out)) != 1],
            out[:, torch.where(self.kept)[0]],
            out[self.table.nonzero(as_tuple=True)],
        ]
        changed = out.clone()
        changed[self.table] = out[self.table] * 2
        changed[:, self.kept] += 1
        return self.loss(batch) + sum(0.01 * part.square().mean() for part in (*parts, changed))


case(inductor=True, data=even)(Picks)


@case(options={"max_epochs": 3}, data=even)
class PicksOthersInEachEpoch(Picks):
    def on_train_epoch_start(self):
        self.kept.copy_(self.kept.roll(self.current_epoch))
        self.table = self.table.roll(self.current_epoch)


@case(eager="a value of a tensor decides", data=even)
class PicksOthersInEachStep(Picks):
    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.kept.copy_(self.kept.roll(1))


@case(eager=DEPENDS, line="chosen = out[batch[1] == 1]")
class PicksByTheBatch(Small):
    def training_step(self, batch, batch_idx):
        out = self(batch[0])
        chosen = out[batch[1] == 1]
        return self.loss(batch) + chosen.square().sum()


def half(values):
    """A mask of each column's smaller half."""
    return values.argsort(0).argsort(0) < len(values) // 2


class PicksAsManyOfEachBatch(Small):
    def training_step(self, batch, batch_idx):
        out, mask = self(batch[0]), half(batch[0][:, 0])
        each = half(batch[0][:, : out.shape[1]])
        parts = [
            out[mask],
            out[~mask, 1:],
            out.t()[:, mask],
            out[each],
            out.masked_select(each),
            out[torch.where(mask)[0]],
            out[each.nonzero(as_tuple=True)],
        ]
        changed = out * 1
        changed[mask] = out[mask] * 2
        changed[each] += out.detach()[each]
        changed[~mask] = 0.5
        return self.loss(batch) + sum(0.01 * part.square().mean() for part in (*parts, changed))


case(inductor=True, data=even)(PicksAsManyOfEachBatch)


@case()
class PicksAsManyOfSmallBatches(PicksAsManyOfEachBatch):
    """The last one of each epoch has fewer rows."""


@case(data=even)
class LeavesOutLoops(Small):
    """As layers for graphs do: edges from a node to itself are taken out, and all nodes get one."""

    def training_step(self, batch, batch_idx):
        rows = len(batch[0])
        nodes = torch.arange(rows)
        edges = torch.stack([nodes, torch.where(batch[0][:, 0].argsort().argsort() < 3, nodes, nodes.roll(1))])
        others = edges[0] != edges[1]
        weights = batch[0][:, 1]
        loops = torch.ones(rows)
        loops[edges[0][~others]] = weights[~others]
        ends = torch.cat([edges[:, others], nodes.expand(2, rows)], 1)
        weights = torch.cat([weights[others], loops])
        out = self(batch[0])
        out = torch.zeros_like(out).index_add_(0, ends[1], out[ends[0]] * weights[:, None])
        return nn.functional.cross_entropy(out, batch[1])


@case(eager=DEPENDS)
class PicksAsManyByAMaskThatIsWrittenTo(Small):
    def training_step(self, batch, batch_idx):
        mask = half(batch[0][:, 0])
        mask[batch[1].sum() % len(mask)] = True
        return self.loss(batch) + self(batch[0])[mask].square().mean()


class PicksTheTargetOfEachRow(Small):
    """By a mask that is made of zeros, as losses with a margin do (ArcFace, CosFace)."""

    def training_step(self, batch, batch_idx):
        out, rows = self(batch[0]), torch.arange(len(batch[1]))
        mask = torch.zeros(out.shape)
        mask[rows, batch[1]] = 1
        target = out[mask == 1]
        mask[rows[:2]] = 1
        more = out[mask == 1]  # of the same memory, with other numbers in it
        logits = out + mask * (target.tanh() - target).unsqueeze(1)
        return nn.functional.cross_entropy(logits, batch[1]) + 0.01 * more.square().mean()


case(inductor=True, data=even)(PicksTheTargetOfEachRow)


class PicksByAMaskOfAnOutputsShape(Small):
    def training_step(self, batch, batch_idx):
        out, targets = self(batch[0]), batch[1][:, None]
        zeros = [torch.zeros_like(out), out.new_zeros(out.shape), torch.full_like(out, 0.0), 1 - torch.ones_like(out)]
        parts = [out[mask.scatter_(1, targets, 1.0).bool()] for mask in zeros]
        return self.loss(batch) + 0.01 * sum(part.square().mean() for part in parts)


case(inductor=True, data=even)(PicksByAMaskOfAnOutputsShape)


@case(eager=DEPENDS)
class PicksByAMaskOfAnOutput(Small):
    def training_step(self, batch, batch_idx):
        out = self(batch[0])
        mask = torch.zeros_like(out).copy_(out).scatter_(1, batch[1][:, None], 1.0)
        return self.loss(batch) + 0.01 * out[mask == 1].square().mean()


@case(options={"max_epochs": 4}, data=even)
class PicksMoreInLaterEpochs(Small):
    def training_step(self, batch, batch_idx):
        limit = 4 if self.current_epoch < 2 else 6
        mask = batch[0][:, 0].argsort().argsort() < limit
        return self.loss(batch) + self(batch[0])[mask].square().mean()


@case(eager=DEPENDS)
class PicksByItsWeights(Small):
    def training_step(self, batch, batch_idx):
        out = self(batch[0])
        return self.loss(batch) + out[:, self.net[2].bias > 0].square().sum()


@case(eager=DEPENDS)
class PicksByTheStep(Small):
    def training_step(self, batch, batch_idx):
        out = self(batch[0])
        return self.loss(batch) + out[torch.arange(len(out)) > torch.tensor(batch_idx % 4)].square().sum()


@case(eager=DEPENDS, line="picked = torch.masked_select(out.mean(), torch.tensor(True))")
class PicksANumber(Small):
    def training_step(self, batch, batch_idx):
        out = self(batch[0])
        picked = torch.masked_select(out.mean(), torch.tensor(True))
        return self.loss(batch) + picked.square().sum()


@case(eager=DEPENDS)
class FillsWhatItPicks(Small):
    def training_step(self, batch, batch_idx):
        places = torch.empty(0, dtype=torch.long)
        torch.nonzero(torch.eye(3, dtype=torch.bool), out=places)
        return self.loss(batch) + 0.0 * places.sum()


class Prototypes(Small):
    """Classes are known by the means of their rows, as in prototypical networks."""

    def prototypes(self, out, targets):
        classes, which, rows = torch.unique(targets, return_inverse=True, return_counts=True)
        sums = torch.zeros(len(classes), out.shape[1]).index_add(0, which, out)
        return classes, which, sums / rows[:, None]

    def training_step(self, batch, batch_idx):
        x, _ = batch
        out, targets = self(x), 5 - 2 * (x[:, 0].argsort().argsort() % 3)
        classes, which, means = self.prototypes(out, targets)
        self.log("classes", classes.sum().float())
        return self.loss(batch) + nn.functional.cross_entropy(-torch.cdist(out, means).square(), which)


case(inductor=True, data=even)(Prototypes)


@case(data=even)
class PrototypesOfEachClass(Prototypes):
    def prototypes(self, out, targets):
        classes, _ = torch.unique(targets).sort()
        means = [out[torch.where(targets == kind)[0]].mean(0) for kind in classes]
        return classes, (classes == targets[:, None]).long().argmax(1), torch.stack(means)


@case(eager="`aten::_unique2` gives a shape", line="found = torch.unique(places)")
class DistinctOnesOfItsWeights(Small):
    def training_step(self, batch, batch_idx):
        places = self(batch[0]).argmax(1)
        found = torch.unique(places)
        return self.loss(batch) / len(found)


@case(eager="`aten::_unique2` gives a shape", line="found = torch.unique((batch[0] * 9).long())")
class DistinctOnesThatAreMoreOrFewer(Small):
    def training_step(self, batch, batch_idx):
        found = torch.unique((batch[0] * 9).long())
        return self.loss(batch) / len(found)


@case()
class DistinctOnesThatStay(Small):
    def training_step(self, batch, batch_idx):
        kinds, rows = torch.unique(torch.arange(12) % 5, return_counts=True)
        return self.loss(batch) * (kinds * rows).sum()


@case(eager="`aten::_unique2` gives a shape", line="found = torch.unique(batch[1].float())")
class DistinctOnesThatAreFloats(Small):
    """Of which some are equal and not the same, and some are not equal to themselves."""

    def training_step(self, batch, batch_idx):
        found = torch.unique(batch[1].float())
        return self.loss(batch) + found.sum()
