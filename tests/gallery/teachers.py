"""Contrast and self-distillation: queues of keys, and copies of the network that follow it."""

import copy

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


add("teacher replaced through data", Teacher, eager="replaces `.data`")


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
