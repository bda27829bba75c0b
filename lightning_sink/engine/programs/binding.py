"""From two recordings that agree to a program that stands for every later step of their kind.

One recording shows what a step did; it does not show what would have been different a step later. So two steps that
follow each other are recorded, and only where both did the same operations with the same constants on the same places
is there a program. Each of its inputs then is a batch's tensor, a tensor that stays where it is, or the present
content of a slot; anything else is a hazard.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from lightning_sink.engine.programs.observation import Observation
from lightning_sink.engine.state.slot import Kept, Slot
from lightning_sink.engine.state.slots import share_memory
from lightning_sink.engine.tracing.recording import Recording
from lightning_sink.engine.watch import Hazard

_TIE_BEFORE = "share a parameter between modules where they are made"
_DO_THE_SAME = "have each step do the same, or decide by `batch_idx` or the batch which way it goes"


@dataclass
class Binding:
    """Where one input of a program comes from; exactly one of the three is set.

    Attributes:
        leaf: Index of a tensor of the batch.
        slot: The slot whose present content it is.
        tensor: The tensor itself; `home` is the slot that must still hold it, if one did.
        twins: Other slots that hold the same tensor and must go on doing so (tied weights).
    """

    name: str
    leaf: int | None = None
    slot: Slot | None = None
    tensor: Tensor | None = None
    home: Slot | None = None
    twins: list[Slot] = field(default_factory=list)

    @property
    def slots(self) -> list[Slot]:
        """All slots that it is in."""
        return [slot for slot in (self.slot, self.home, *self.twins) if slot is not None]


def bind(first: Observation, second: Observation, volatile: set[str]) -> tuple[list[Binding], list[Hazard]]:
    """Finds out where each input comes from, and why the two steps make no program, if they make none.

    Args:
        first: A recorded step.
        second: The next recorded step of the same kind.
        volatile: Slots that some step fills; what is in them now may not be there at the next step.
    """
    if first.recording.text != second.recording.text:
        return [], [_difference(first.recording, second.recording)]
    if first.constants != second.constants or first.spec != second.spec:
        return [], [Hazard("the step returns other Python values each time", way_out="return tensors in their place")]
    if first.appends.key != second.appends.key:
        what = "the step appends other Python values to lists each time"
        return [], [Hazard(what, way_out="append tensors in their place")]
    if first.note != second.note:
        what = "the step logs other names, or with other arguments, each time"
        return [], [Hazard(what, way_out="log the same in each step")]
    names = {slot.name for slot in (*first.filled, *first.cleared)}
    others = {slot.name for slot in (*second.filled, *second.cleared)}
    if names != others or [slot.name for slot in first.filled] != [slot.name for slot in second.filled]:
        name = min(names ^ others or names)
        what = f"the step fills other places each time: {name} is one that not every step does"
        return [], [Hazard(what, way_out=_DO_THE_SAME)]
    trained = {slot.owner_id for slot in second.before.slots.values() if slot.may_gather}
    inputs, written = second.recording.inputs, second.recording.written_inputs
    found = [_bind(first, second, index, index in written, volatile, trained) for index in range(len(inputs))]
    hazards = [item for item in found if isinstance(item, Hazard)]
    if share_memory(inputs, written):
        what = "a tensor that the step writes to shares its memory with another one"
        hazards.append(Hazard(what, way_out="give it memory of its own (`clone()`)"))
    looked_at = second.recording.looked_at
    hazards += [
        Hazard(f"the value of {b.name}, which a step replaces, decides what Python does", second.recording.first_use[i])
        for i, b in enumerate(found)
        if i in looked_at and isinstance(b, Binding) and b.tensor is None
    ]
    return [item for item in found if isinstance(item, Binding)], hazards


def _bind(
    first: Observation, second: Observation, index: int, is_written: bool, volatile: set[str], trained: set[int]
) -> Binding | Hazard:
    old, new = first.recording.inputs[index], second.recording.inputs[index]
    for leaf, given in enumerate(zip(first.leaves, second.leaves, strict=True)):  # their signatures are equal
        if old is given[0] and new is given[1]:
            return Binding(f"batch tensor {leaf}", leaf=leaf)
    names = second.before.names.get(id(new), [])
    homes = [second.before.slots[name] for name in names]
    if new is old and not any(home.is_gradient or home.name in volatile for home in homes):
        if not homes:
            return Binding(f"closed-over tensor {index}", tensor=new)
        return Binding(names[0], tensor=new, home=homes[0], twins=homes[1:])
    where = second.recording.first_use[index]
    if names and all(first.before.tensors.get(name) is old for name in names):
        # What was there before the step may come from elsewhere too: `self.mask = MASKS[0]`, `p.grad = self.zeros`.
        put = [home for home in homes if new is old and second.recorder.puts_into(home, unseen=not is_written)]
        if put and is_written:
            what = f"the step puts a tensor that is kept elsewhere into {put[0].name}, and writes to it"
            return Hazard(what, where, _TIE_BEFORE if id(new) in trained else "put a copy there (`clone()`)")
        is_gradient = all(home.is_gradient for home in homes)
        asks = second.recorder.identities.may_ask(new, is_gradient=is_gradient)
        own = {slot.name for slot in (*second.filled, *second.cleared)}
        if asks and new is not old and own.isdisjoint(names):
            return Hazard(f"the step asks which tensor is in {names[0]}, and it is another one each time", where)
        # A parameter's gradient, and what optimizers keep for it, go with it, whichever attribute that is in.
        stays = homes if id(new) in trained or (asks and new is old) else put
        return Binding(names[0], slot=homes[0], twins=[*homes[1:], *(Kept(home.name, new, None) for home in stays[:1])])
    if first.recorder.made(new):
        what = "a tensor of one step is used in the next, and no attribute holds it"
        return Hazard(what, where, "keep it in an attribute or a buffer")
    if new.requires_grad or not torch.equal(new, old):
        what = "a tensor is made anew in each step from Python or numpy values"
        return Hazard(what, where, "make it once, before the training, or with the batch")
    if is_written:
        return Hazard("a tensor that is made anew in each step of numpy's values is written to", where)
    return Binding(f"constant {index}", tensor=new)


def _difference(first: Recording, second: Recording) -> Hazard:
    lines = zip(first.text.splitlines(), second.text.splitlines(), strict=False)
    old, new = next(((a, b) for a, b in lines if a != b), ("", ""))
    if not old:
        return Hazard("two steps in a row do a different number of operations", way_out=_DO_THE_SAME)
    what = f"two steps in a row do not do the same: first `{old[:100]}`, then `{new[:100]}`"
    return Hazard(what, way_out=_DO_THE_SAME)
