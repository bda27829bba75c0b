"""What steps collect or return of a tensor's numbers at once, as arrays of numpy's or lists."""

import lightning as L
import numpy as np
from torch import nn

import positions
from gallery.case import Small, add, case, from_3_11
from gallery.collected import Collecting


def arrays():
    """What is promised where arrays and lists of a tensor's numbers are collected."""
    return from_3_11("takes values out of the step")


class CollectsArrays(Collecting):
    """As it is written for functions of other libraries, which want all of an epoch's."""

    def __init__(self):
        super().__init__()
        self.found, self.labels, self.lists = [], [], []

    def training_step(self, batch, batch_idx):
        out = self(batch[0])
        self.outs.append(out.detach().cpu().numpy())
        self.found.extend(out.argmax(1).numpy())
        self.labels.extend(batch[1].tolist())
        self.lists += [{"all": out.detach().tolist(), "loss": out.sum().item()}]
        self.lists.append(batch[1].float().tolist())
        return nn.functional.cross_entropy(out, batch[1])

    def on_train_epoch_end(self):
        many, rows = self.trainer.num_training_batches, len(self.labels)
        assert [type(self.outs[-1]), type(self.found[-1]), type(self.labels[-1])] == [np.ndarray, np.int64, int]
        assert (len(self.outs), len(self.found), len(self.lists)) == (many, rows, 2 * many)
        self.log("out", float(np.concatenate(self.outs).sum()))
        self.log("right", float((np.array(self.found) == np.array(self.labels)).mean()))
        self.log("first", float(np.sum([row["all"] for row in self.lists[:-2:2]])))
        self.log("last", float(np.sum([(1 + i) * np.sum(row) for i, row in enumerate(self.lists[1::2])])))
        for held in (self.outs, self.found, self.labels, self.lists):
            held.clear()


add("collects arrays", CollectsArrays, inductor=True, size=9, **arrays())
add("collects arrays in windows", CollectsArrays, options={"accumulate_grad_batches": 2}, **arrays())


class SeesArrays(L.Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        assert outputs["labels"] == batch[1].tolist()
        assert outputs["out"].shape == (len(batch[1]), 3)
        assert np.array_equal(outputs["out"], outputs["loss_of"].numpy())


@case(inductor=True, options={"callbacks": lambda: [SeesArrays()]}, **arrays())
class ReturnsArrays(Small):
    def training_step(self, batch, batch_idx):
        out = self(batch[0])
        loss = nn.functional.cross_entropy(out, batch[1])
        return {"loss": loss, "out": out.detach().numpy(), "labels": batch[1].tolist(), "loss_of": out.detach()}


@case(eager="takes values out of the step")
class AsksForTheLengthOfAList(Collecting):
    def training_step(self, batch, batch_idx):
        labels = batch[1].tolist()
        self.outs.extend(labels)
        self.log("rows", float(len(labels)))
        return self.loss(batch)


@case(size=9, **arrays())
class ChangesWhatItHasCollected(Collecting):
    """A list, and an array's items, are those of then; an array is the tensor's memory."""

    def __init__(self):
        super().__init__()
        self.found, self.live = [], []

    def training_step(self, batch, batch_idx):
        out = self(batch[0])
        loss, labels = nn.functional.cross_entropy(out, batch[1]), batch[1].clone()
        self.outs.append(labels.tolist())
        self.found.extend(labels.numpy())
        self.live.append(labels.numpy())
        labels.add_(5)
        return loss

    def on_train_epoch_end(self):
        self.log("then", float(sum(map(sum, self.outs)) + sum(self.found)))
        self.log("live", float(sum(array.sum() for array in self.live)))
        for held in (self.outs, self.found, self.live):
            held.clear()


@case(eager="which it reads, too, or changes otherwise" if positions.KNOWN else "a value of a tensor decides")
class ChangesADictionaryThatItHasCollected(Collecting):
    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        row = {"loss": loss.item()}
        self.outs.append(row)
        row["rows"] = len(batch[1])
        return loss

    def on_train_epoch_end(self):
        self.log("rows", float(sum(row["rows"] for row in self.outs)))
        self.outs.clear()
