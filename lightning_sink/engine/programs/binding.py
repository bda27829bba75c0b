"""From two recordings that agree to a program that stands for every later step of their kind.

One recording shows what a step did; it does not show what would have been different a step later. So two steps that
follow each other are recorded, and only where both did the same operations with the same constants on the same places
is there a program. Each of its inputs then is a batch's tensor, a tensor that stays where it is, or the present
content of a slot; anything else is a hazard.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from lightning_sink.engine.private import pytree
from lightning_sink.engine.state.appends import Appends
from lightning_sink.engine.state.attributes import own_attributes
from lightning_sink.engine.state.slot import ItemSlot, Kept, Slot
from lightning_sink.engine.state.slots import Snapshot, shape_of, share_memory, storages
from lightning_sink.engine.step import Result, Step
from lightning_sink.engine.tracing.record import Recorder
from lightning_sink.engine.tracing.recording import Recording
from lightning_sink.engine.watch import Hazard

TENSOR = object()
"""Stands for a tensor among the values that a step returns."""

_ON_OTHERS = "a tensor that is no parameter of the module's or an optimizer's gets a gradient, or loses it"
_TIE_BEFORE = "share a parameter between modules where they are made"
_DO_THE_SAME = "have each step do the same, or decide by `batch_idx` or the batch which way it goes"


@dataclass
class Observation:
    """One recorded step with what surrounded it.

    `cleared_first` are gradients that the step clears before they matter, `absent` those of them that were not there;
    `unread` are other places that it fills, with what might be asked of what was there, and of what it puts there.
    """

    recorder: Recorder
    recording: Recording
    leaves: list[Tensor]
    before: Snapshot
    filled: list[Slot]
    cleared: list[Slot]
    spec: Any
    constants: list[Any]
    num_outputs: int
    num_logged: int
    loss: int | None
    appends: Appends
    note: Any
    gradients: list[tuple[Slot, bool]]
    unread: list[tuple[Slot, Any, Any]]
    cleared_first: list[Slot]
    absent: list[Slot]

    def clears(self, known: Collection[str]) -> None:
        """Has its program clear gradients by these names, which steps before this one had left nothing in."""
        others = [slot for slot in self.absent if slot.name in known]
        self.cleared += others
        self.absent = [slot for slot in self.absent if slot not in others]

    @property
    def way(self) -> Hashable:
        """What must be equal for two steps to have done the same: branches, and gradients that were there before."""
        branches = tuple((guard.name, guard.outcome) for guard in self.recording.guards)
        answers = tuple((question.name, question.value) for question in self.recording.questions)
        truths = tuple((assumed.where, assumed.outcome) for assumed in self.recording.assumed)
        gradients = tuple((slot.name, there) for slot, there in self.gradients)
        return branches, answers, truths, gradients, tuple(slot.name for slot in self.cleared_first)


def observe(recorder: Recorder, before: Snapshot, after: Snapshot, step: Step, result: Result) -> Observation:
    """Ends a recording: works out what the program has to return and which slots it fills."""
    leaves = step.leaves
    flat, spec = pytree.tree_flatten(result.output)
    tensors = [item for item in flat if isinstance(item, Tensor)]
    filled: list[tuple[Slot, Tensor]] = []
    cleared: list[Slot] = []
    for name, slot in after.slots.items():
        if name not in before.slots:
            recorder.hazard(f"{name} appears")
        elif (tensor := after.tensors[name]) is not before.tensors[name]:
            if tensor is None:
                cleared.append(slot)
            else:
                filled.append((slot, tensor))
        elif before.pointers.get(name) != after.pointers.get(name) and not recorder.moved.has(tensor):
            recorder.hazard(f"the step replaces `.data` of {name} (`.data.copy_()` is compiled)")
    for name in before.slots:
        if name not in after.slots:
            recorder.hazard(f"{name} disappears")
    _look_at_containers(recorder, before, after)
    hidden = _check_gradients(recorder, after, leaves, filled)
    _check_aliases(recorder, filled)
    appends = Appends(recorder.taken)
    _check_collected(recorder, after, appends)
    placed = [(f"`{slot.name}`", tensor) for slot, tensor in filled]
    placed += [(f"`{name}`", tensor) for name, tensor in zip(appends.names, appends.tensors, strict=True)]
    _check_attributes(recorder, [*placed, *(("what it returns", tensor) for tensor in tensors)])
    recording = recorder.finish([*tensors, *result.logged, *appends.tensors, *(tensor for _, tensor in filled)])
    constants = [TENSOR if isinstance(item, Tensor) else item for item in flat]
    loss = next((index for index, tensor in enumerate(tensors) if tensor is result.loss), None)
    old = recorder.old_gradients
    slots = [slot for slot in before.slots.values() if slot.is_gradient]
    gradients = hidden + [
        (slot, before.tensors[slot.name] is not None)
        for slot in slots
        if slot.owner_id in old.asked
        or (slot.owner_id not in old.cleared and (slot.may_gather or old.asks_unseen or slot.owner_id in old.given))
    ]
    # A step clears a gradient that somebody put where there was none, and may ask for the shape of what it replaces: no
    # operation shows either.
    cleared_first = [slot for slot in slots if slot.owner_id in old.cleared]
    absent = [s for s in cleared_first if before.tensors[s.name] is after.tensors.get(s.name) is None]
    unread = [
        (slot, shape_of(before.tensors[slot.name]), shape_of(tensor)) for slot, tensor in filled if not slot.is_gradient
    ]
    return Observation(
        recorder=recorder,
        recording=recording,
        leaves=leaves,
        before=before,
        filled=[slot for slot, _ in filled],
        cleared=cleared,
        spec=spec,
        constants=constants,
        num_outputs=len(tensors),
        num_logged=len(result.logged),
        loss=loss,
        appends=appends,
        note=result.note,
        gradients=gradients,
        unread=unread,
        cleared_first=cleared_first,
        absent=absent,
    )


def _look_at_containers(recorder: Recorder, before: Snapshot, after: Snapshot) -> None:
    """Finds out which lists and dictionaries the step has made anew; a program does so for each place by itself."""
    places: dict[int, set[Hashable]] = {}
    for name, slot in after.slots.items():
        if isinstance(slot, ItemSlot):
            held = after.containers[name]
            pairs = zip(before.containers.get(name, ()), held, strict=False)
            slot.makes_anew = tuple(type(new) is not tuple and new is not old for old, new in pairs)
            for depth in (depth for depth, is_new in enumerate(slot.makes_anew) if is_new):
                where = (id(held[depth - 1]), slot.path[depth - 1]) if depth else (slot.owner_id, slot.key)
                places.setdefault(id(held[depth]), set()).add(where)
    if any(len(of_one) > 1 for of_one in places.values()):
        recorder.hazard("the step puts one new list or dictionary into two places")


def _check_gradients(
    recorder: Recorder, after: Snapshot, leaves: list[Tensor], filled: list[tuple[Slot, Tensor]]
) -> list[tuple[Slot, bool]]:
    """A program fills the gradients of parameters; another tensor's would stay what it is, or be lost.

    Returns places of such, which are empty behind the step, with whether there was a gradient before it.
    """
    for slot, kept in filled:
        if kept.requires_grad and (kept.is_leaf or kept.retains_grad):
            recorder.hazard(f"the step keeps a tensor that has a gradient of its own in `{slot.name}`")
    known = {id(tensor) for tensor in leaves} | {slot.owner_id for slot in after.slots.values() if slot.is_gradient}
    old, hidden = recorder.old_gradients, list[tuple[Tensor, bool]]()
    met = {*old.switched, *old.given, *old.asked}
    for tensor, where in zip(recorder.recording.inputs, recorder.recording.first_use, strict=True):
        key, gathers = id(tensor), tensor.requires_grad or id(tensor) in met
        if key in known or not tensor.is_leaf or not gathers:
            continue
        if tensor.grad is not None:
            recorder.hazard(_ON_OTHERS, where)
        elif key not in old.given and key not in old.found:
            hidden.append((tensor, False))
    others = [each for key, each in old.given.items() if key not in known and not recorder.made(each[0])]
    if any(tensor.grad is not before for tensor, before in others):
        recorder.hazard(_ON_OTHERS)
    hidden += [each for key, each in old.found.items() if key not in known and not recorder.made(each[0])]
    hidden += [(tensor, before is not None) for tensor, before in others if id(tensor) not in old.found]
    return [
        (Slot(f"a hidden tensor's gradient {i}", tensor, "grad"), there) for i, (tensor, there) in enumerate(hidden)
    ]


def _check_aliases(recorder: Recorder, filled: list[tuple[Slot, Tensor]]) -> None:
    """A program puts a copy where the step puts a view of what it writes to."""
    for (slot, _), pointer in zip(filled, storages(tensor for _, tensor in filled), strict=True):
        if pointer in recorder.recording.written:
            recorder.hazard(f"{slot.name} shares its memory with a tensor that the step writes to")


def _check_collected(recorder: Recorder, after: Snapshot, appends: Appends) -> None:
    """A program appends copies: what is written to later would be seen through the tensor itself."""
    if appends.problem is not None:
        recorder.hazard(appends.problem)
    held = {place for place in storages(after.tensors.values()) if place is not None} | recorder.recording.written
    for name, place in zip(appends.names, storages(appends.tensors), strict=True):
        if place in held:
            recorder.hazard(f"the step appends to `{name}` what shares its memory with a tensor of the training's")


def _check_attributes(recorder: Recorder, placed: list[tuple[str, Tensor]]) -> None:
    """A program gives tensors on which nobody has put anything."""
    for place, tensor in placed:
        if own_attributes(tensor):
            recorder.hazard(f"the step puts a tensor with attributes of its own into {place}")


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
    looked_at = second.recording.read | second.recording.asked | {count.input for count in second.recording.counts}
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
        # A parameter's gradient, and what optimizers keep for it, go with it, whichever attribute that is in.
        stays = homes if id(new) in trained else put
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
