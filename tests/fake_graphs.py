"""Graphs of the fake device, which keep what CUDA's keep: addresses, and what the host gave by value.

While a function is captured nothing happens: what it wrote is put back, and what it made holds NaN until it is
replayed. A replay runs the operations that were taken down, on the memory that they were taken down with. An operation
on the host is not taken down, what waits for the device is refused, and what is fetched arrives when it is waited for.
"""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from lightning_sink.engine.compiler.copies import memory_of
from lightning_sink.engine.device.graphs import Graphs
from lightning_sink.engine.state.default_generators import Generators

REFUSED = "operation not permitted when stream is capturing"


def tensors_in(item):
    return [leaf for leaf in tree_leaves(item) if isinstance(leaf, torch.Tensor)]


def storage(tensor):
    return tensor.untyped_storage().data_ptr()


class Capture(TorchDispatchMode):
    """Takes operations on the device down."""

    def __init__(self, may_draw):
        super().__init__()
        self.may_draw = may_draw
        self.taken, self.before, self.made = [], {}, {}

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        given = tensors_in((args, kwargs))
        there = [tensor for tensor in given if not tensor.is_cpu]
        for tensor in there:
            self.keep(tensor)
        if there and self.waits(operation, args):
            raise RuntimeError(REFUSED)
        if not self.may_draw and torch.Tag.nondeterministic_seeded in operation.tags:
            raise RuntimeError("RNG within a loop is not supported")
        result = operation(*args, **kwargs)
        made = tensors_in(result)
        if not there and all(tensor.is_cpu for tensor in made):
            return result  # on the host, once and for all
        known = set(map(storage, there))
        crosses = any(tensor.is_cpu for tensor in made) or any(t.is_cpu and t.dim() for t in given)
        if crosses or (operation is torch.ops.aten._to_copy.default and not there):
            raise RuntimeError(REFUSED)
        if not made or any(storage(tensor) not in known for tensor in made) or operation._schema.is_mutable:
            self.taken.append((operation, tree_map(self.baked, args), kwargs, made))
        for tensor in made:
            if storage(tensor) not in known:
                self.made[storage(tensor)] = tensor
        return result

    @staticmethod
    def baked(given):
        return given.clone() if isinstance(given, torch.Tensor) and given.is_cpu else given

    @staticmethod
    def waits(operation, args):
        if operation is torch.ops.aten.index.Tensor:  # which has the tag for what masks give
            return any(index is not None and index.dtype is torch.bool for index in args[1])
        tags = torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape
        return any(tag in operation.tags for tag in tags)

    def keep(self, tensor):
        """Keeps what lay in memory before the capture; some schemas do not say what they write."""
        place = storage(tensor)
        if place not in self.made and place not in self.before:
            memory = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
            self.before[place] = memory, memory.clone()

    def undo(self):
        for memory, content in self.before.values():
            memory.copy_(content)
        for tensor in self.made.values():
            torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage()).fill_(255)

    def replay(self):
        for operation, args, kwargs, made in self.taken:
            known = set(map(storage, tensors_in((args, kwargs))))
            for target, source in zip(made, tensors_in(operation(*args, **kwargs)), strict=True):
                if storage(target) not in known:
                    target.copy_(source)


class FakeGraphs(Graphs):
    """The fake device, as what captures and replays.

    Attributes:
        captures: How often it has captured.
        replays: How often it has replayed.
        loops: Whether it repeats by itself; a number on it says how often.
        turns: How often it has done so.
        waited: The marks that were waited for.
    """

    loops = False

    def __init__(self, device):
        self.device = device
        self.captures = self.replays = self.turns = self.marks = 0
        self.waited, self.under_way = [], []

    def repeats(self):
        return self.loops

    def capture(self, body, left=None):
        self.captures += 1
        mode, generators = Capture(may_draw=left is None), Generators(torch.device(self.device))
        generated = generators.state()
        try:
            with mode:
                outputs = body()
        finally:
            mode.undo()
            generators.restore(generated)

        def replay():
            self.replays += 1
            if left is None:
                mode.replay()
            while left is not None and int(left.to("cpu", non_blocking=True)) > 0:
                self.turns += 1
                mode.replay()

        return replay, outputs

    def bring(self, tensors):
        return [self.brought(tensor) if tensor.is_cpu else tensor for tensor in tensors]

    def brought(self, tensor):
        memory = memory_of(tensor).clone().to(self.device, non_blocking=True)
        return memory.as_strided(tensor.shape, tensor.stride(), 0)

    def fetch(self, tensors):
        found = [torch.empty(tensor.shape, dtype=tensor.dtype) for tensor in tensors]
        for tensor, target in zip(tensors, found, strict=True):
            target.view(-1).view(torch.uint8).fill_(255)
            self.under_way.append((self.marks, target, tensor.to("cpu", non_blocking=True).clone()))
        return found

    def mark(self):
        self.marks += 1
        return self.marks

    def wait(self, mark):
        self.waited.append(mark)
        for number, target, values in self.under_way:
            if number < mark:
                target.copy_(values)
        self.under_way = [item for item in self.under_way if item[0] >= mark]

    def seconds(self, begin, end):
        return (end - begin) * 1e-6
