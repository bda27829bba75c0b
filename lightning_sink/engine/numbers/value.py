"""A Python number that changes from step to step: a learning rate, the step count that Adam keeps, `batch_idx`.

A recording keeps every Python number that reaches an operation as a constant. `Value` is what is known of one that must
not be: arithmetic with it is recorded as operations on a 0-dim float64 tensor, so the program computes what eager
computes in Python. Where Python decides something by it, or needs the number itself (an index, `float()`), the
recording stands only for steps in which that comes out the same; a `Guard` tells which these are. Of a number that only
the program knows that is a truth that it finds out by itself (`tracing/assumptions.py`). `Number` (`number.py`) is such
a value in the place of the number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch import Tensor

from lightning_sink.engine.numbers.guards import Host, Uses
from lightning_sink.engine.numbers.result_types import exactly, is_zero_beside, kind_of
from lightning_sink.engine.private import saves_by_hooks

if TYPE_CHECKING:
    from lightning_sink.engine.numbers.plain_uses import PlainUses

PLAINLY = (
    "is needed as a plain number, by `float()`, numpy, an index or an object's own operator (not by `self.log`, torch,"
    " `math.cos`, nor in `tensor.take(torch.tensor(n))` for `list[n]`)"
)


class Value:
    """A Python number that is an input of the program, or is computed of such.

    Args:
        tensor: The value as the recording sees it, 0-dim float64, or what records it once it is needed.
        value: The same value in Python.
        uses: Told of what is done with it.
        name: What users call it, and what tells it from others.
        host: Gives its value in later steps; None where only the program knows that.
        counts: Whether it comes from a counter, so that users' arithmetic may have no value for a later one.
        plain: Tells whether what is computed of it and of another number is a stand-in again; None if it always is.
        most: How large a whole number is at most that only the program knows; None where nobody knows that.

    Attributes:
        whole: Of a whole number that is nothing but what a tensor or a counter gives, this, in a type that has all of
            them; None for any other.
    """

    def __init__(
        self,
        tensor: Tensor | Callable[[], Tensor],
        value: float,
        uses: Uses,
        name: Any,
        host: Host | None = None,
        counts: bool = False,
        whole: Tensor | None = None,
        plain: PlainUses | None = None,
        most: int | None = None,
    ) -> None:
        self._tensor, self.value, self.uses, self.key = tensor, value, uses, name
        self.host, self.is_counted, self.whole, self.plain, self.most = host, counts, whole, plain, most
        self.terms = 1  # terms that it is computed of
        uses.add(self)

    @property
    def tensor(self) -> Tensor:
        """The value as the recording sees it."""
        if self.uses.closed:
            return torch.tensor(float(self.value), dtype=torch.float64)
        if not isinstance(self._tensor, Tensor):
            self._tensor = self._tensor()
        return self._tensor

    @property
    def is_inexact(self) -> bool:
        """Whether it may be a whole number by now that float64 has not, and is none that is only handed on."""
        is_known = self.most is not None or self.host is not None or self.plain is None
        return isinstance(self.value, int) and not is_known

    @property
    def is_needed_plainly(self) -> bool:
        """Whether tensors are computed with the number itself, and not with its tensor.

        So they are where parts of the forward pass run again behind it. Python's number is with the graph of the first
        run, and a tensor would be what the second one saves, when the number may be another.
        """
        return self.is_inexact or saves_by_hooks()

    def freeze(self) -> Any:
        """Returns the plain number; the recording then stands for steps with the same one."""
        if self.uses.closed:
            return self.value
        host, outcome = self.host, exactly(self.value)
        later = None if host is None else lambda: exactly(host())
        self.uses.froze(f"{self.words} {PLAINLY}", (self.key, "is"), outcome, later)
        return self.value

    def stays_of_its_type(self) -> None:
        """Takes note that it is kept: an option may be another kind of number in later steps."""
        is_whole = self.is_counted and type(self.value) is int
        if (host := self.host) is not None and not is_whole:
            self.uses.decide((self.key, "is a"), type(self.value), lambda: type(host()))

    def hosted(self, symbol: Callable[..., Any], other: Any, reflected: bool, present: bool = False) -> Host | None:
        """Returns what computes the same in later steps, with the other operand on the left if `reflected`.

        If `present`, what only the program knows then is to be what it is now.
        """
        host, others = self.host, other.host if is_value(other) else lambda: other
        if present and (host is None) != (others is None):
            mine, theirs = self.value, plain_value(other)
            host, others = host or (lambda: mine), others or (lambda: theirs)
        if host is None or others is None:
            return None
        return (lambda: symbol(others(), host())) if reflected else (lambda: symbol(host(), others()))

    def finds_out(self, truth: Callable[[], Tensor], outcome: bool) -> bool:
        """Has the program find out a truth of what only it knows; tells whether that is this one.

        Where it is another one, or nobody finds out, the number itself is to be asked for, which makes no program.
        """
        return not self.is_inexact and self.uses.is_recorded() and bool(truth()) is outcome

    def tried(self, name: Any, compute: Callable[[], Any], host: Host | None, may_fail: bool) -> Any:
        """Returns what a computation gives; the recording stands for steps in which it is an error only if it is now.

        Args:
            name: Tells the computation from others.
            compute: Does it with the present numbers.
            host: Does it with those of later steps.
            may_fail: Whether other numbers may make it an error, or give a number of another type.
        """
        try:
            value = compute()
        except (ArithmeticError, LookupError, ValueError) as error:  # which the user's code may handle
            if host is not None:
                self.uses.decide((name, "is a"), type(error), lambda: kind_of(host))
            raise
        if may_fail and host is not None:
            self.uses.decide((name, "is a"), type(value), lambda: kind_of(host))
        return value

    def computed(
        self,
        name: str,
        plain: Callable[[Any], float],
        function: Callable[[Tensor], Tensor],
        domain: Callable[[Tensor], Tensor] | None,
    ) -> Value | None:
        """Returns what a function of the number gives; None where it has to be asked for the number itself.

        `function` is the same as `plain` for tensors, but that it raises no error. `plain` raises none in the `domain`;
        None for all numbers.
        """
        host = self.host
        if self.uses.closed:
            return None
        key = name, self.key
        known = self.uses.memo.get(key)
        if known is None:
            if host is None and domain is not None and not self.finds_out(lambda: domain(self.tensor), True):
                return None
            later = None if host is None else lambda: plain(host())
            value = self.tried(key, lambda: plain(self.value), later, may_fail=domain is not None)
            uses, counts = self.plain, self.is_counted
            known = type(self)(lambda: function(self.tensor), value, self.uses, key, later, counts, plain=uses)
            self.uses.memo[key] = known
        return known

    def decided(self, name: Any, plain: Callable[[Any], bool], truth: Callable[[Tensor], Tensor]) -> bool:
        """Returns what Python decides by the number; `truth` is the same as `plain` for tensors."""
        outcome, host = plain(self.value), self.host
        if not self.uses.closed:
            later = None if host is None else lambda: plain(host())
            self.decides((self.key, name), outcome, later, lambda: truth(self.tensor))
        return outcome

    def decides(self, name: Any, outcome: bool, later: Host | None, truth: Callable[[], Tensor] | None) -> None:
        """Takes note of what Python decided by it; `later` does so in later steps, or else the program by a `truth`."""
        if later is not None or truth is None or not self.finds_out(truth, outcome):
            self.uses.froze(f"{self.words} decides what Python does", name, outcome, later)

    @property
    def words(self) -> str:
        """What users call the number that it comes from."""
        name = self.key
        while not isinstance(name, str):
            name = name[1]
        return name

    def is_divisor(self, tensors: list[Tensor]) -> bool:
        """Tells whether whole tensors may be divided by it; the recording stands for steps with the same answer."""
        host = self.host
        if host is None:
            return False
        is_zero = is_zero_beside(self.value, tensors)
        like = [torch.empty([1] * min(1, tensor.dim()), dtype=tensor.dtype, device="cpu") for tensor in tensors]
        name = self.key, "is zero", tuple((tensor.dtype, tensor.dim()) for tensor in like)
        self.uses.decide(name, is_zero, lambda: is_zero_beside(host(), like))
        return not is_zero


def is_value(item: Any) -> TypeGuard[Value]:
    """Tells whether something stands for a number. It is not asked: code of anybody's may be behind that."""
    return issubclass(type(item), Value)


def plain_value(item: Any) -> Any:
    """Returns the present number for what stands for one, and tells nobody."""
    return item.value if is_value(item) else item
