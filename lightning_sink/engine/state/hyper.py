"""The optimizers' hyperparameters: which of them a program takes as inputs and which are constants in it.

Owns the 0-dim float64 tensors that stand for lifted numbers. A learning rate is always lifted; any other number is a
constant until it is seen to change (a schedule that cycles momentum, say), and is lifted from then on. A step may set
one itself (`group["lr"] = ...` in `training_step`, `group["step"] += 1` in an optimizer) to what the host knows: it is
carried then, as attributes are.
"""

from __future__ import annotations

import numbers
import operator
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from lightning_sink.engine.numbers.guards import Host, Uses
from lightning_sink.engine.numbers.number import Number
from lightning_sink.engine.numbers.released import as_they_are
from lightning_sink.engine.numbers.result_types import exactly
from lightning_sink.engine.state.ahead import Left
from lightning_sink.engine.state.attributes import NUMBERS, SCALARS, fingerprint
from lightning_sink.engine.state.optimizer_form import PLAIN_FORM, move_counts, plain_form
from lightning_sink.held import ABSENT


class OptionLeft(Left):
    """A lifted number that steps set.

    Attributes:
        key: The option's name.
        behind: What may stand for it in programs where an earlier part of the step has set it.
    """

    def __init__(self, group: dict[str, Any], key: str) -> None:
        super().__init__()
        self._group, self.key = group, key
        self.behind = torch.zeros((), dtype=torch.float64, device="cpu")

    def present(self) -> Any:
        """Returns what it is."""
        return self._group[self.key]

    def put(self, value: Any) -> None:
        """Sets it."""
        self._group[self.key] = value


class Hyperparameters:
    """Reads, lifts and puts back the entries of optimizers' parameter groups."""

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        self._optimizers = optimizers
        self._entries: list[tuple[dict[str, Any], str, int | None]] = []
        self._owners: list[int] = []
        self._layout: list[list[Any]] = []
        self.tensors: dict[int, Tensor] = {}
        self._tensor_entries: set[int] = set()
        self.values: list[Any] = []
        self._put_in: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = []
        self._spent: set[int] = set()
        self._is_stale = self._has_new = False
        self._wanted: set[tuple[int, str]] = set()  # groups, by identity, and keys: numbers that steps set
        self._left: dict[int, OptionLeft] = {}  # those that steps set
        self._known: set[int] = set()  # those that steps before the recorded one have set
        self._set: dict[int, tuple[Host, str, Any]] = {}  # what the recorded step has set, and to what
        self._handed: dict[int, tuple[Host, str, Any]] = {}  # what later parts of it find of that
        self._seen: list[Hashable] = []
        self.refresh()

    def refresh(self) -> bool:
        """Looks at the groups anew; returns whether groups, parameters or options came, went or changed their place."""
        numbered = self._numbered()
        layout = [[*group, id(group), *map(id, group["params"]), *_lengths(group)] for _, group in numbered]
        if layout == self._layout:
            seen, self._seen = self._seen, self._look()
            return seen != self._seen
        self._layout = layout
        owned = [(number, entry) for number, group in numbered for entry in _entries(group)]
        self._owners, self._entries = [number for number, _ in owned], [entry for _, entry in owned]
        self.tensors = {}
        self._tensor_entries.clear()
        self._left.clear()
        self.values = self.read()
        for index, (group, key, _) in enumerate(self._entries):
            if key == "lr" or (id(group), key) in self._wanted:
                self._lift(index)
        self._seen = self._look()
        return True

    def _numbered(self) -> list[tuple[int, dict[str, Any]]]:
        """Returns the groups, each with the number of its optimizer: of the first one where several have one group."""
        found: dict[int, tuple[int, dict[str, Any]]] = {}
        for number, optimizer in enumerate(self._optimizers):
            for group in optimizer.param_groups:
                found.setdefault(id(group), (number, group))
        return [*found.values()]

    def _look(self) -> list[Hashable]:
        """Returns a fingerprint of what groups hold besides entries: what schedulers keep there, and what is inside."""
        known = {(id(group), key) for group, key, _ in self._entries}
        groups = [group for _, group in self._numbered()]
        items = [(id(group), key, item) for group in groups for key, item in group.items() if key != "params"]
        return [fingerprint(item) for of, key, item in items if (of, key) not in known or not _is_flat(item)]

    def read(self) -> list[Any]:
        """Returns the values of all entries as they are now; tensors stay tensors. `ABSENT` for one that is gone."""
        try:
            return [group[key] if index is None else group[key][index] for group, key, index in self._entries]
        except (KeyError, IndexError):
            self._has_new = True
            return [_entry(*of) for of in self._entries]

    def update(self) -> bool:
        """Takes over values that changed since the last call.

        Returns whether an entry that was a constant changed, so that no program made before now is right.
        """
        if self._has_new:  # which leave no entry where it was
            self._has_new = False
            self.refresh()
            return True
        stale, self._is_stale = self._is_stale, False
        values = self.read()
        if self._has_new:
            return self.update()
        for index in self._tensor_entries:
            if isinstance(values[index], Tensor):
                self.tensors[index].copy_(values[index])  # may have been filled in place
        for index, (group, key, _) in enumerate(self._entries if stale else ()):
            if (id(group), key) in self._wanted and index not in self.tensors:
                self.values[index] = values[index]
                self._lift(index)
        others = [index for index, same in enumerate(map(operator.is_, self.values, values)) if not same]
        changed = [index for index in others if not _equal(self.values[index], values[index])]
        if not changed:
            return stale
        self.values, before = values, self.values
        for index in changed:
            old, new = before[index], values[index]
            if index in self.tensors and _is_number(new):
                if isinstance(new, Tensor):
                    self.tensors[index].copy_(new.detach())
                    self._tensor_entries.add(index)
                else:
                    self.tensors[index].fill_(float(new))
                continue
            stale = True
            if self._entries[index][1] == "lr" or (isinstance(new, float) and isinstance(old, float)):
                self._lift(index)
        return stale

    def _lift(self, index: int) -> None:
        value = self.values[index]
        if _is_number(value):
            if isinstance(value, Tensor):
                self.tensors[index] = value.detach().to(torch.float64, copy=True)
                self._tensor_entries.add(index)
            else:
                self.tensors[index] = torch.tensor(float(value), dtype=torch.float64, device="cpu")

    def constants(self) -> tuple[Any, ...]:
        """Returns the values that programs made now have as constants."""
        values = self.values
        return tuple(id(v) if isinstance(v, Tensor) else v for i, v in enumerate(values) if i not in self.tensors)

    def begin(self) -> list[Tensor]:
        """A recording begins; returns the tensors that may stand for entries."""
        self._spent, self._set, self._handed, self._known = set(), {}, {}, {*self._left}
        return [*self.tensors.values(), *(left.behind for left in self._left.values())]

    def begin_part(self) -> None:
        """A part of the step begins, whose operations are not recorded yet: others may have set entries.

        What a second part sets anew, a third one does not know: a program has one value of it.
        """
        for index in (self._known & self._set.keys()) - self._handed.keys():
            self._handed[index] = self._set[index]
            self._left[index].behind.fill_(self._set[index][2])

    def spend(self) -> None:
        """What is there from now on is not what the step computes with."""
        self._spent = set(range(len(self._optimizers)))

    @contextmanager
    def lifted(self, uses: Uses) -> Iterator[None]:
        """Puts stand-ins in place of lifted numbers and asks for the optimizers' plain form."""
        hooks: list[Any] = []
        try:
            for optimizer in self._optimizers:
                with suppress(AttributeError):  # one that never called `Optimizer.__init__`
                    hooks.append(optimizer.register_state_dict_post_hook(self._show_form))
            self._lift_all(uses)
            yield
        finally:
            for hook in hooks:
                hook.remove()
            fused = [group for group, before, _ in self._put_in if before.get("fused")]
            for optimizer in self._optimizers:
                move_counts(optimizer, fused)
            self._put_back(uses)

    def _show_form(self, optimizer: Optimizer, state: dict[str, Any]) -> None:
        """Puts the form that the user asked for into what a step takes of an optimizer, which it may load later."""
        asked = {id(group): before for group, before, _ in self._put_in}
        for group, shown in zip(optimizer.param_groups, state.get("param_groups", ()), strict=False):
            before = asked.get(id(group), group)
            shown.update({key: before[key] for key in PLAIN_FORM if key in before})

    @contextmanager
    def plain(self, uses: Uses, of: Optimizer) -> Iterator[None]:
        """Puts the numbers themselves back, for somebody to change them: those of one optimizer.

        No program may use what is left there; `uses` is told where one does.
        """
        self._put_back(uses)
        self._spent |= {number for number, item in enumerate(self._optimizers) if item is of}
        try:
            yield
        finally:
            self._lift_all(uses)

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Takes what a recording has put into the groups out of them for a while, for who saves them in the step."""
        present = [(group, dict(group)) for group, _, _ in self._put_in]
        for group, before, put in self._put_in:
            group.update({key: before[key] for key in before if key in group and group[key] is put[key]})
        try:
            yield
        finally:
            for group, held in present:
                group.update(held)

    def _lift_all(self, uses: Uses) -> None:
        groups = [group for _, group in self._numbered()]
        saved, present = [dict(group) for group in groups], self.read()
        self._put_in = [(group, before, before) for group, before in zip(groups, saved, strict=True)]
        for index in [index for index in self.tensors if present[index] is not ABSENT]:
            self._put(index, self._number(index, present[index], uses))
        for index, owner in enumerate(self._owners):  # an option that has not changed yet may do so right here
            if owner in self._spent and index not in self.tensors and type(present[index]) in NUMBERS:
                what = f"the optimizer's options (here {self._entries[index][1]!r}) may be other numbers"
                self._put(index, _spent(present[index], uses, (index, what)))
        for optimizer in self._optimizers:  # whichever of those that have a group is torch's
            for group in optimizer.param_groups:
                group.update(plain_form(optimizer, group))
        self._put_in = [(group, before, dict(group)) for group, before in zip(groups, saved, strict=True)]

    def _put_back(self, uses: Uses) -> None:
        for group, before, put in self._put_in:
            # What the step itself wrote into a group stays; stand-ins do not.
            for key in [key for key in group if key not in put or group[key] is not put[key]]:
                self._has_new |= key not in before  # as an optimizer makes it in its first step
                if not self._is_set(group, key):
                    uses.leak(f"the step sets the optimizer's {key!r}, and not to a number that the host knows")
                group[key] = as_they_are(group[key])
                if isinstance(tensor := before.get(key), Tensor) and not isinstance(group[key], Tensor):
                    group[key] = tensor.fill_(group[key])
            for key in [key for key in put if key not in group]:
                uses.leak(f"the step takes {key!r} out of the optimizer's options")
            group.update({key: before[key] for key in before if key in group and group[key] is put[key]})
        self._put_in = []

    def _is_set(self, group: dict[str, Any], key: str) -> bool:
        """Takes note that a step has set an entry; tells whether programs can do so."""
        found = [i for i, (of, name, _) in enumerate(self._entries) if of is group and name == key]
        index, value = found[0] if len(found) == 1 else -1, group[key]
        plain = as_they_are(value)
        host = value.host if type(value) is Number else lambda: plain
        if type(plain) in NUMBERS and host is not None and index not in self.tensors:
            self._wanted.add((id(group), key))
            self._is_stale = True
        if index not in self.tensors or index in self._tensor_entries or host is None:
            return False
        # Another type would be other arithmetic beside tensors of whole numbers.
        if not (isinstance(plain, float) or (type(plain) is int and type(self.values[index]) is int)):
            return False
        self._set[index] = host, f"{key} {index} = {value.key if type(value) is Number else exactly(plain)!r}", plain
        if index not in self._left:
            self._left[index] = OptionLeft(group, key)
            self._is_stale = True  # programs take it to stay as it is
        return True

    def set_by_step(self) -> list[tuple[OptionLeft, Host, str]]:
        """Returns what the recorded step has set, with what gives the value in later steps, and a text."""
        return [(self._left[index], host, text) for index, (host, text, _) in self._set.items()]

    def inputs(self) -> list[tuple[Tensor, Host]]:
        """Returns the tensors that stand for entries which steps set, with what gives their values before a step.

        Those of the recorded step: what it sets is known before it runs.
        """
        found = [(self.tensors[index], left.found) for index, left in self._left.items()]
        return found + [(self._left[index].behind, host) for index, (host, *_) in self._handed.items()]

    def _number(self, index: int, present: Any, uses: Uses) -> Number:
        value, name = self.values[index], (index, f"the optimizer's {self._entries[index][1]!r}")
        # `float()` of a tensor would be an operation, and be recorded.
        plain: Any = present.tolist() if isinstance(present, Tensor) else present
        held: Any = self.tensors[index].tolist()
        handed, is_spent = self._handed.get(index), self._owners[index] in self._spent
        if handed is not None and handed is self._set[index] and plain is handed[2] and not is_spent:
            host, text, _ = handed
            return Number(self._left[index].behind, plain, uses, (*name, text), host, counts=True)
        # A schedule steps between the parts of a step, too.
        if index in self._set or is_spent or float(plain) != held:
            return _spent(plain, uses, (index, f"{name[1]} is another number here"))
        if isinstance(value, Tensor):
            return Number(self.tensors[index], float(plain), uses, name)
        left = self._left.get(index)
        host = (lambda: self.values[index]) if left is None else left.found
        return Number(self.tensors[index], value, uses, name, host, counts=left is not None)

    def _put(self, index: int, number: Number) -> None:
        group, key, position = self._entries[index]
        if position is None:
            group[key] = number
        else:
            items = list(group[key])
            items[position] = number
            group[key] = tuple(items)


def _spent(value: Any, uses: Uses, name: tuple[int, str]) -> Number:
    """Returns a stand-in for an option where it is not what programs have, and users are told so."""

    def tensor() -> Tensor:
        uses.leak(f"{name[1]} than in the optimizer's step: that changes in between")
        return torch.tensor(float(value), dtype=torch.float64)

    return Number(tensor, value, uses, (*name, value))


def _entries(group: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str, int | None]]:
    for key, value in group.items():
        if key == "params":
            continue
        if isinstance(value, (tuple, list)):
            yield from ((group, key, index) for index in range(len(value)))
        else:
            yield group, key, None


def _entry(group: dict[str, Any], key: str, index: int | None) -> Any:
    value = group.get(key, ABSENT)
    if index is None or value is ABSENT:
        return value
    return value[index] if index < len(value) else ABSENT


def _equal(old: Any, new: Any) -> bool:
    if isinstance(old, Tensor) or isinstance(new, Tensor):
        # One that is filled in place stays an input; another one is another value.
        return old is new or (_is_number(old) and _is_number(new) and bool(old == new))
    return old is new or bool(old == new)


def _lengths(group: dict[str, Any]) -> list[int]:
    return [len(value) for value in group.values() if isinstance(value, (tuple, list))]


def _is_flat(value: Any) -> bool:
    """Tells whether there is nothing inside of a value that changes."""
    items = value if isinstance(value, (tuple, list)) else [value]
    return all(type(item) in SCALARS or isinstance(item, (numbers.Real, Tensor)) for item in items)


def _is_number(value: Any) -> bool:
    """Tells whether a value can be lifted: a number of Python's or numpy's, or a tensor with one element."""
    if isinstance(value, Tensor):
        return value.dim() == 0 and not value.is_complex()
    return type(value) is float or (isinstance(value, numbers.Real) and not isinstance(value, bool))
