"""Contrast and self-distillation: queues of keys, and copies of the network that follow it."""

import copy

import lightning as L
import torch
from torch import nn

from gallery.case import Small, add, case
from gallery.state import even


class Queue(Small):
    """A queue of keys with a pointer, as MoCo has it; the pointer is read as a number."""

    def __init__(self):
        super().__init__()
        self.register_buffer("queue", nn.functional.normalize(torch.randn(32, 3), dim=1))
        self.register_buffer("pointer", torch.zeros(1, dtype=torch.long))

    def training_step(self, batch, batch_idx):
        keys = nn.functional.normalize(self(batch[0]), dim=1)
        loss = torch.logsumexp(keys @ self.queue.clone().T, 1).mean() + self.loss(batch)
        self.enqueue(keys.detach())
        return loss

    @torch.no_grad()
    def enqueue(self, keys):
        pointer = int(self.pointer)
        self.queue[pointer : pointer + len(keys)] = keys
        self.pointer[0] = (pointer + len(keys)) % 32


add("queue of keys", Queue, eager="a value of a tensor decides", line="int(self.pointer)", data=even)


@case(data=even, inductor=True)
class QueueWhosePointerStaysATensor(Queue):
    @torch.no_grad()
    def enqueue(self, keys):
        rows = (self.pointer + torch.arange(len(keys))) % 32
        self.queue.index_copy_(0, rows, keys)
        self.pointer.add_(len(keys)).remainder_(32)


@case()
class QueueThatIsShifted(Queue):
    @torch.no_grad()
    def enqueue(self, keys):
        self.queue = torch.cat([keys, self.queue])[:32]


class Teacher(Small):
    """A copy of the network follows it, as in BYOL."""

    def __init__(self):
        super().__init__()
        self.teacher = copy.deepcopy(self.net).requires_grad_(False)

    def training_step(self, batch, batch_idx):
        with torch.no_grad():
            target = self.teacher(batch[0])
        return self.loss(batch) + nn.functional.mse_loss(self(batch[0]), target)

    def on_train_batch_end(self, outputs, batch, batch_idx):
        for own, other in zip(self.teacher.parameters(), self.net.parameters(), strict=True):
            own.data = 0.9 * own.data + 0.1 * other.data


add("teacher replaced through data", Teacher, inductor=True)
add("teacher replaced through data, in windows", Teacher, options={"accumulate_grad_batches": 2})


@case()
class TeacherReplacedBeforeItIsUsed(Teacher):
    """As in MoCo's own code."""

    def training_step(self, batch, batch_idx):
        with torch.no_grad():
            for other, own in zip(self.net.parameters(), self.teacher.parameters(), strict=True):
                own.data = own.data * 0.9 + other.data * 0.1
        return super().training_step(batch, batch_idx)

    def on_train_batch_end(self, outputs, batch, batch_idx):
        pass


class Centered(Teacher):
    """A center that moves, as in DINO."""

    def __init__(self):
        super().__init__()
        self.register_buffer("center", torch.zeros(1, 3))

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        mean = self.teacher(batch[0]).detach().mean(0, keepdim=True)
        self.put(0.9 * self.center + 0.1 * mean)
        return loss + (self(batch[0]) - self.center).square().mean()

    def put(self, value):
        self.center.data = value

    def on_train_batch_end(self, outputs, batch, batch_idx):
        pass


add("center replaced through data", Centered)


@case()
class CenterReplacedTwice(Centered):
    def put(self, value):
        self.center.data = value * 2
        self.center.data = self.center * 0.5 + value * 0.01


@case()
class CenterReplacedAndWrittenTo(Centered):
    def put(self, value):
        self.center.data = value * 2
        self.center.mul_(0.5)


USED = "computes with what it put into a tensor's `.data`, or with what was there before"


@case(eager=USED)
class ParametersThatAreTrainedReplaced(Small):
    """Between the forward pass and the backward one."""

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        for parameter in self.parameters():
            parameter.data = parameter.data * 0.99
        return loss


def put(name, **about):
    """Puts a center into the gallery that is replaced by a function of the module and the value."""

    def register(function):
        add(f"center replaced: {name}", type("Put", (Centered,), {"put": function}), **about)
        return function

    return register


@put("what is put is used", eager=USED, line="self.log(")
def _(self, value):
    self.center.data = value
    self.log("norm", value.norm())


@put("what is put is written to", eager=USED, line="value.add_(0.1)")
def _(self, value):
    self.center.data = value
    value.add_(0.1)


@put("what was there is used", eager=USED, line="old.norm()")
def _(self, value):
    old = self.center.data
    self.center.data = value
    self.log("norm", old.norm())


@put("what is put is kept", eager="replaces `.data`")
def _(self, value):
    self.center.data = self.kept = value


@put("by a parameter's memory", eager="shares its memory")
def _(self, value):
    self.center.data = self.net[2].bias.data[None]


@put("by itself")
def _(self, value):
    self.center.data = self.center.data


@put("by a view", eager="replaces `.data`")
def _(self, value):
    self.center.data = torch.cat([value, value])[1:]


@put("by a view of all of it")
def _(self, value):
    self.center.data = (value * 1.0).view(1, 3)


@put("what it is a view of is used", eager=USED, line="flat.norm()")
def _(self, value):
    flat = value.reshape(-1) * 1.0
    self.center.data = flat.view(1, 3)
    self.log("norm", flat.norm())


@put("its own is used")
def _(self, value):
    self.center.data = value
    self.log("norm", self.center.data.norm())


@put("by itself and what comes of it, detached")
def _(self, value):
    self.center.data = (self.center * 0.9 + value * 0.1).detach()


@put("what was there is kept", eager="")
def _(self, value):
    self.kept = self.center.data
    self.center.data = value


class WhatWasThereIsCollected(Centered):
    def __init__(self):
        super().__init__()
        self.centers = []

    def put(self, value):
        self.centers.append(self.center.data)
        self.center.data = value


add("center replaced: what was there is collected", WhatWasThereIsCollected, eager="shares its memory")


class Snapshot(L.Callback):
    """Holds what the teacher had when the epoch began, and puts it back behind the third one."""

    def on_train_epoch_start(self, trainer, module):
        self.held = [parameter.data for parameter in module.teacher.parameters()]
        self.state = module.teacher.state_dict()

    def on_train_epoch_end(self, trainer, module):
        own = [*module.teacher.parameters()]
        module.log("moved", sum((a - b).abs().sum() for a, b in zip(own, self.held, strict=True)))
        module.log("by state", sum((a - b).abs().sum() for a, b in zip(own, self.state.values(), strict=True)))
        if trainer.current_epoch == 2:
            for parameter, held in zip(own, self.held, strict=True):
                parameter.data = held


add(
    "teacher replaced of which a callback holds what it had",
    Teacher,
    inductor=True,
    options={"max_epochs": 4, "callbacks": lambda: [Snapshot()]},
)


class TeacherWrittenFirst(Teacher):
    """What somebody holds of it changes once more, before it is replaced."""

    def on_train_batch_end(self, outputs, batch, batch_idx):
        with torch.no_grad():
            for own, other in zip(self.teacher.parameters(), self.net.parameters(), strict=True):
                own.mul_(0.9)
                own.data = own.data + other.data * 0.1


add(
    "teacher written to and then replaced of which a callback holds what it had",
    TeacherWrittenFirst,
    options={"max_epochs": 4, "callbacks": lambda: [Snapshot()]},
)


class GivesItsMemory(Teacher):
    """The network goes on in the teacher's memory, which it writes to until the teacher is moved again."""

    def on_train_epoch_end(self):
        for own, other in zip(self.teacher.parameters(), self.net.parameters(), strict=True):
            other.data = own.data


add("teacher replaced that gives the network its memory", GivesItsMemory, options={"max_epochs": 4})


class GradientsReplaced(Small):
    """A way to clip them."""

    def on_after_backward(self):
        for parameter in self.parameters():
            parameter.grad.data = parameter.grad.data.clamp(-0.05, 0.05)


add("gradients replaced through data", GradientsReplaced)
add("gradients replaced through data, in windows", GradientsReplaced, eager="", options={"accumulate_grad_batches": 2})


class Part(Centered):
    """The center is a part of what another buffer holds, until it is replaced."""

    def __init__(self):
        super().__init__()
        self.register_buffer("both", torch.zeros(2, 3))
        self.center.data = self.both[:1]

    def put(self, value):
        self.center.data = self.center * 0.9 + value * 0.1
        self.both.add_(1)


add("center replaced that lies in another buffer at first", Part)


@case()
class TransposedAndReplaced(Centered):
    def __init__(self):
        super().__init__()
        self.register_buffer("both", torch.zeros(3, 2))

    def put(self, value):
        super().put(value)
        self.both.data = (self.both.t() + self.center[0, 0]).t().contiguous()


@case()
class TeacherWrittenInPlace(Teacher):
    def on_train_batch_end(self, outputs, batch, batch_idx):
        with torch.no_grad():
            for own, other in zip(self.teacher.parameters(), self.net.parameters(), strict=True):
                own.mul_(0.9).add_(other, alpha=0.1)


@case()
class TeacherWrittenThroughData(Teacher):
    def on_train_batch_end(self, outputs, batch, batch_idx):
        for own, other in zip(self.teacher.parameters(), self.net.parameters(), strict=True):
            own.data.mul_(0.9).add_(other.data, alpha=0.1)


@case()
class TeacherWrittenInALumpBeforeZeroGrad(Teacher):
    @torch.no_grad()
    def on_before_zero_grad(self, optimizer):
        torch._foreach_lerp_([*self.teacher.parameters()], [*self.net.parameters()], 0.1)

    def on_train_batch_end(self, outputs, batch, batch_idx):
        pass


@case(data=even)
class TeacherOfTorch(Teacher):
    """`AveragedModel` counts its updates in a buffer and looks at it."""

    def __init__(self):
        super().__init__()
        self.teacher = torch.optim.swa_utils.AveragedModel(self.net)

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.teacher.update_parameters(self.net)


@case()
class TeacherRenewedBetweenEpochs(Teacher):
    """A target network: copied once an epoch."""

    def on_train_epoch_start(self):
        self.teacher.load_state_dict(self.net.state_dict())

    def on_train_batch_end(self, outputs, batch, batch_idx):
        pass


@case()
class TeacherMadeAnewBetweenEpochs(TeacherRenewedBetweenEpochs):
    def on_train_epoch_start(self):
        self.teacher = copy.deepcopy(self.net).requires_grad_(False)


@case()
class TeacherOutsideTheModule(TeacherRenewedBetweenEpochs):
    """Kept in a list, so that it is not saved; its weights are replaced between epochs."""

    def __init__(self):
        super().__init__()
        self.others = [self.teacher]
        del self.teacher

    @property
    def teacher(self):
        return self.others[0]

    def on_train_epoch_start(self):
        for own, other in zip(self.teacher.parameters(), self.net.parameters(), strict=True):
            own.data = other.detach().clone()
