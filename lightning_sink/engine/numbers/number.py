"""Python numbers that change from step to step: a learning rate, the step count that Adam keeps, `batch_idx`.

A recording keeps every Python number that reaches an operation as a constant. `Number` takes the place of one that must
not be: arithmetic with it is recorded as operations on a 0-dim float64 tensor, so the program computes what eager
computes in Python. Where Python decides something by it, or needs the number itself (an index, `math.sqrt`), the
recording stands only for steps in which that comes out the same; a `Guard` tells which these are.
"""

from __future__ import annotations

import math
import numbers
import operator
import sys
from collections.abc import Callable, Sequence
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from lightning_sink.engine.numbers.guards import Host, Uses
from lightning_sink.engine.numbers.result_types import (
    COMPARE,
    DIVIDE,
    MOST_WHOLE,
    REMAINDERS,
    are_whole,
    as_with_python_number,
    as_wrapped,
    exactly,
    is_large,
    is_real,
    is_wide,
    is_zero_beside,
    kind_of,
    may_be_another_kind,
    most_of,
    result_type_is_known,
)
from lightning_sink.engine.private import saves_by_hooks
from lightning_sink.engine.source import is_in_place

if TYPE_CHECKING:
    from lightning_sink.engine.numbers.plain_uses import PlainUses

_MOST_TERMS = 128
"""Terms of an expression. Its name is looked up for each, and a loop may double them with each round."""


class Number:
    """A Python number that is an input of the program. To Python's `isinstance` it is what it stands for.

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
        self._tensor, self.value, self._uses, self._name = tensor, value, uses, name
        self._host, self._counts, self.whole, self.plain, self.most = host, counts, whole, plain, most
        self._size = 1  # terms that it is computed of
        uses.add(self)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(self.value)

    @property
    def tensor(self) -> Tensor:
        """The value as the recording sees it."""
        if self._uses.closed:
            return torch.tensor(float(self.value), dtype=torch.float64)
        if not isinstance(self._tensor, Tensor):
            self._tensor = self._tensor()
        return self._tensor

    @property
    def host(self) -> Host | None:
        """What gives its value in later steps; None where only the program knows that."""
        return self._host

    @property
    def is_inexact(self) -> bool:
        """Whether it may be a whole number by now that float64 has not, and is none that is only handed on."""
        is_known = self.most is not None or self._host is not None or self.plain is None
        return isinstance(self.value, int) and not is_known

    @property
    def is_needed_plainly(self) -> bool:
        """Whether tensors are computed with the number itself, and not with its tensor.

        So they are where parts of the forward pass run again behind it. Python's number is with the graph of the first
        run, and a tensor would be what the second one saves, when the number may be another.
        """
        return self.is_inexact or saves_by_hooks()

    @property
    def computed_of(self) -> Any:
        """What tells it from what is computed otherwise."""
        return self._name

    def freeze(self) -> Any:
        """Returns the plain number; the recording then stands for steps with the same one."""
        if self._uses.closed:
            return self.value
        host, outcome = self._host, exactly(self.value)
        later = None if host is None else lambda: exactly(host())
        self._uses.froze(f"{self.words} {PLAINLY}", (self._name, "is"), outcome, later)
        return self.value

    def stays_of_its_type(self) -> None:
        """Takes note that it is kept: an option may be another kind of number in later steps."""
        if (host := self._host) is not None and not self._counts:
            self._uses.decide((self._name, "is a"), type(self.value), lambda: type(host()))

    def _compare(self, symbol: Callable[[Any, Any], Any], other: Any) -> Any:
        other = _ended(other)
        if self._uses.closed:
            return symbol(self.value, other)
        if self.plain is not None and not _is_plain_operand(other):
            return symbol(self.freeze(), other)
        if isinstance(other, Tensor):
            return symbol(_plain(self, [other], compared=True), other)
        outcome = bool(symbol(self.value, _value(other)))
        host, name = self._hosted(symbol, other, reflected=False), (self._name, symbol.__name__, _key(other))
        later = None if host is None else lambda: bool(host())
        self._uses.froze(f"{self.words} decides what Python does", name, outcome, later)
        return outcome

    def _hosted(self, symbol: Callable[..., Any], other: Any, reflected: bool, present: bool = False) -> Host | None:
        """Returns what computes the same in later steps, with the other operand on the left if `reflected`.

        If `present`, what only the program knows then is to be what it is now.
        """
        host, others = self._host, other._host if type(other) is Number else lambda: other
        if present and (host is None) != (others is None):
            mine, theirs = self.value, _value(other)
            host, others = host or (lambda: mine), others or (lambda: theirs)
        if host is None or others is None:
            return None
        return (lambda: symbol(others(), host())) if reflected else (lambda: symbol(host(), others()))

    def _combine(self, symbol: Callable[..., Any], other: Any, reflected: bool) -> Any:
        other = _ended(other)
        if self._uses.closed:
            return symbol(other, self.value) if reflected else symbol(self.value, other)
        operands: tuple[Any, Any] = (other, self) if reflected else (self, other)
        if reflected and _grows(other) and is_in_place(sys._getframe(2)):  # `items *= number`
            return getattr(operator, f"i{symbol.__name__}")(other, self.freeze())
        uses = self.plain or (other.plain if type(other) is Number else None)
        if uses is not None and not _is_plain_operand(other):
            return symbol(*map(_frozen, operands))
        if isinstance(other, Tensor):
            whole = are_whole([other], [self.value])
            if (whole and symbol is operator.pow) or self.is_needed_plainly:
                return symbol(*map(_frozen, operands))
            divides = symbol is operator.truediv
            number = as_wrapped(self.tensor, self.value, [other], divides)
            out = symbol(other, number) if reflected else symbol(number, other)
            return as_with_python_number(out, [other], [self.value], divides)
        if uses is not None and not uses.gives(sys._getframe(2)):
            return symbol(*map(_frozen, operands))
        size = self._size + (other._size if type(other) is Number else 0)
        if size > _MOST_TERMS:
            return symbol(*map(_frozen, operands))
        name = symbol.__name__, self._name, _key(other), reflected
        known = self._uses.memo.get(name)
        if known is None:
            left, right = map(_value, operands)
            is_known = type(other) is Number or is_real(other)
            if not is_known or is_large(left) or is_large(right):
                return symbol(*map(_frozen, operands))
            host = self._hosted(symbol, other, reflected)
            is_of_step = uses is not None and host is None
            most = _most_of(symbol, operands) if is_of_step else None
            if is_of_step and most is None:
                return symbol(*map(_frozen, operands))
            counts = self._counts or (type(other) is Number and other._counts)
            # Numbers that no counter gives are an optimizer's, whose arithmetic is not the user's.
            may_fail = counts and may_be_another_kind(symbol, right, varies=type(operands[1]) is Number)
            # What a tensor gives is of one type, and whether a division by a counter is an error is the counter's.
            tried = self._hosted(symbol, other, reflected, present=True) if may_fail else host
            value = self._tried(name, lambda: symbol(left, right), tried, may_fail)
            if is_wide(value):
                return symbol(*map(_frozen, operands))
            if isinstance(value, int) and host is not None and symbol in (operator.mul, operator.pow):
                self._uses.decide((name, "is wide"), False, lambda: is_wide(host()))

            def tensor() -> Tensor:
                plain = _plain(other)
                return _compute(symbol, plain, self.tensor) if reflected else _compute(symbol, self.tensor, plain)

            known = Number(tensor, value, self._uses, name, host, counts, plain=uses, most=most)
            if is_of_step and isinstance(value, int):  # 0 has no sign
                known.whole = whole = symbol(*map(_whole, operands))
                known._tensor = lambda: whole.to(torch.float64)
            known._size = size
            self._uses.memo[name] = known
        return known

    def _tried(self, name: Any, compute: Callable[[], Any], host: Host | None, may_fail: bool) -> Any:
        """Returns what a computation gives; the recording stands for steps in which it is an error only if it is now.

        Args:
            name: Tells the computation from others.
            compute: Does it with the present numbers.
            host: Does it with those of later steps.
            may_fail: Whether other numbers may make it an error, or give a number of another type.
        """
        try:
            value = compute()
        except (ArithmeticError, ValueError) as error:  # which the user's code may handle
            if host is not None:
                self._uses.decide((name, "is a"), type(error), lambda: kind_of(host))
            raise
        if may_fail and host is not None:
            self._uses.decide((name, "is a"), type(value), lambda: kind_of(host))
        return value

    def computed(
        self, name: str, plain: Callable[[Any], float], function: Callable[[Tensor], Tensor], may_fail: bool
    ) -> Number | None:
        """Returns what a function of the number gives; None where it has to be asked for the number itself.

        `function` is the same as `plain` for tensors; if it `may_fail`, that raises an error for some numbers, where
        this raises none.
        """
        host = self._host
        if self._uses.closed or (may_fail and host is None):
            return None
        key = name, self._name
        known = self._uses.memo.get(key)
        if known is None:
            later = None if host is None else lambda: plain(host())
            value = self._tried(key, lambda: plain(self.value), later, may_fail)
            uses, counts = self.plain, self._counts
            known = Number(lambda: function(self.tensor), value, self._uses, key, later, counts, plain=uses)
            self._uses.memo[key] = known
        return known

    @property
    def words(self) -> str:
        """What users call the number that it comes from."""
        name = self._name
        while not isinstance(name, str):
            name = name[1]
        return name

    def is_divisor(self, tensors: list[Tensor]) -> bool:
        """Tells whether whole tensors may be divided by it; the recording stands for steps with the same answer."""
        host = self._host
        if host is None:
            return False
        is_zero = is_zero_beside(self.value, tensors)
        like = [torch.empty([1] * min(1, tensor.dim()), dtype=tensor.dtype, device="cpu") for tensor in tensors]
        name = self._name, "is zero", tuple((tensor.dtype, tensor.dim()) for tensor in like)
        self._uses.decide(name, is_zero, lambda: is_zero_beside(host(), like))
        return not is_zero

    def plus(self, other: int) -> Number:
        """Returns the sum, for a counter that is ahead of what it was."""
        total: Number = self._combine(operator.add, other, reflected=False)
        total.whole = total.tensor
        return total

    def __neg__(self) -> Any:
        return self._combine(operator.mul, -1, reflected=False)

    def __pos__(self) -> Number:
        return self

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return type(self.value), (self.freeze(),)

    def __array__(self, *arguments: Any, **options: Any) -> Any:
        return sys.modules["numpy"].asarray(self.freeze(), *arguments, **options)

    def __array_ufunc__(self, function: Any, method: str, *given: Any, **options: Any) -> Any:
        symbol = _UFUNCS.get(function.__name__)
        others = [value for value in given if type(value) is not Number]
        by_itself = len(others) == 1 and getattr(others[0], "shape", None) == () and is_real(others[0])
        if symbol is not None and method == "__call__" and not options and by_itself:
            reflected = given[0] is not self  # but a number of numpy's
            return self._combine(symbol, given[1 - reflected], reflected)
        return getattr(function, method)(*released(given), **released(options))

    def __getattr__(self, name: str) -> Any:
        if not hasattr(self.value, name):
            raise AttributeError(f"{type(self.value).__name__!r} object has no attribute {name!r}")
        return getattr(self.freeze(), name)

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Lets a tensor operation take the number as the tensor it stands for.

        The few operations of optimizers that take a scalar only (`alpha=`, `value=`, the weight of `lerp`) are
        rewritten. Anything else that refuses a tensor gets the plain number.
        """
        kwargs = dict(kwargs or {})
        numbers_given = [item for item in (*args, *kwargs.values()) if type(item) is Number]
        if all(item._uses.closed for item in numbers_given) or any(item.is_needed_plainly for item in numbers_given):
            return func(*released(args), **released(kwargs))
        name = getattr(func, "__name__", "")
        if (
            name.startswith("_foreach_")
            and type(args[0]) is not Number
            and (one := getattr(Tensor, name.removeprefix("_foreach_"), None)) is not None
        ):
            return _one_by_one(one, args, kwargs)
        given = [*args, *kwargs.values()]
        tensors = [item for item in given if isinstance(item, Tensor)]
        values = [item.value for item in given if type(item) is Number]
        whole = are_whole(tensors, values)
        if whole and {"alpha", "value"} & kwargs.keys():  # what does not fit their type is an error
            return func(*released(args), **released(kwargs))
        if type(kwargs.get("alpha")) is Number and len(args) == 2 and isinstance(args[1], Tensor):
            wide = args[1].to(torch.promote_types(args[0].dtype, args[1].dtype))
            scaled = wide * kwargs.pop("alpha").tensor
            return func(args[0], scaled.to(wide.dtype), **kwargs)
        if type(kwargs.get("value")) is Number and name in ("addcdiv", "addcdiv_", "addcmul", "addcmul_"):
            number = kwargs.pop("value")
            scaled = args[1] * number.tensor
            return func(args[0], scaled.to(torch.result_type(args[1], number.value)), args[2], **kwargs)
        if name in ("lerp", "lerp_") and len(args) == 3 and type(args[2]) is Number:
            return func(args[0], args[1], args[2].tensor.to(args[0].dtype), **kwargs)
        divisor = args[1] if len(args) > 1 else kwargs.get("other")
        leaves_rest = name in REMAINDERS or kwargs.get("rounding_mode") is not None
        may_fail = whole and leaves_rest and type(divisor) is Number and not divisor.is_divisor(tensors)
        if result_type_is_known(name, tensors, values) and not may_fail:
            divides = name in DIVIDE and not kwargs.get("rounding_mode")
            try:
                plain = partial(_plain, beside=tensors, compared=name in COMPARE, divides=divides)
                out = func(*map(plain, args), **{key: plain(item) for key, item in kwargs.items()})
            except (TypeError, RuntimeError):  # an argument that has to be a number; a real error comes again below
                pass
            else:
                return as_with_python_number(out, tensors, values, divides) if isinstance(out, Tensor) else out
        return func(*released(args), **released(kwargs))


def _one_by_one(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Does with the tensors in lists, one after the other, what an operation on the lists does with all of them."""
    made = []
    for index in range(len(args[0])):
        given = [arg[index] if isinstance(arg, (tuple, list)) else arg for arg in args]
        # The lists' `addcdiv` and `addcmul` take their number by its place, too.
        by_name = {"value": given.pop()} if func.__name__.startswith("addc") and len(given) > 3 else {}
        made.append(func(*given, **kwargs, **by_name))
    return None if func.__name__.endswith("_") else tuple(made)


def released(value: Any) -> Any:
    """Returns a value with the plain number in every place of a `Number`, lists and dictionaries changed in place."""
    if type(value) is Number:
        return value.freeze()
    if type(value) is tuple:
        items = [released(item) for item in value]
        return value if all(a is b for a, b in zip(items, value, strict=True)) else tuple(items)
    if type(value) in (list, dict):
        for key, item in list(value.items() if type(value) is dict else enumerate(value)):
            plain = released(item)
            if plain is not item:
                value[key] = plain
    return value


def as_they_are(value: Any) -> Any:
    """Returns a value with the plain number in every place of a `Number`, and tells nobody.

    A tuple, list or dictionary that holds one is copied.
    """
    if type(value) is Number:
        return value.value
    if not isinstance(value, (tuple, list, dict)):
        return value
    held = [*(value.values() if isinstance(value, dict) else value)]
    items = [as_they_are(item) for item in held]
    if all(map(operator.is_, items, held)):
        return value
    if isinstance(value, tuple):
        return value._make(items) if hasattr(value, "_make") else type(value)(items)
    found = copy(value)
    for key, item in zip(value if isinstance(value, dict) else range(len(value)), items, strict=True):
        found[key] = item
    return found


def tensor_of(number: Number, dtype: torch.dtype | None) -> Tensor:
    """Returns what `torch.tensor` makes of a number."""
    default = torch.int64 if isinstance(number.value, int) else torch.get_default_dtype()
    return number.tensor.to(dtype or default, copy=True)


PLAINLY = (
    "is needed as a plain number, by `float()`, numpy, an index or an object's own operator (not by `self.log`, torch,"
    " `math.cos`)"
)

_UFUNCS = {"add": operator.add, "subtract": operator.sub, "multiply": operator.mul, "divide": operator.truediv}
"""Numpy's own numbers ask these functions, and not the other one, for what is computed of both."""


def _frozen(value: Any) -> Any:
    return value.freeze() if type(value) is Number else value


def _is_plain_operand(value: Any) -> bool:
    """Tells whether nobody's own code, and none of numpy's, sees what a value is computed with."""
    return type(value) in (int, float, Tensor, nn.Parameter, Number)


def _grows(value: Any) -> bool:
    """Tells whether arithmetic in place changes a value, and is not asked for by a method of its own first."""
    return hasattr(type(value), "__imul__") and not isinstance(value, Tensor)


def _key(value: Any) -> Any:
    if type(value) is Number:
        return value._name
    return type(value), exactly(value) if isinstance(value, (numbers.Number, str)) else id(value)


def _plain(value: Any, beside: Sequence[Tensor] = (), compared: bool = False, divides: bool = False) -> Any:
    """Returns the tensor for a stand-in, in the type in which a number is computed or compared with what is beside."""
    if type(value) is not Number:
        return value
    if compared and beside:
        return value.tensor.to(torch.result_type(beside[0], value.value))
    return as_wrapped(value.tensor, value.value, [*beside], divides) if beside else value.tensor


def _ended(value: Any) -> Any:
    """Returns the plain number for a stand-in of a step that has ended: it is nothing else any more."""
    return value.value if type(value) is Number and value._uses.closed else value


def _value(value: Any) -> Any:
    return value.value if type(value) is Number else value


def _bound(value: Any) -> int | None:
    """Returns how large a whole number is at most in all steps; None where nobody knows that."""
    if type(value) is Number:
        return value.most if value.host is None else MOST_WHOLE >> 1  # larger ones are told by a guard
    return abs(value) if isinstance(value, int) else None


def _whole(value: Any) -> Any:
    """Returns a whole number as the recording sees it, in a type that has all of them."""
    if type(value) is not Number:
        return value
    return value.tensor.to(torch.int64) if value.whole is None else value.whole.to(torch.int64)


def _most_of(symbol: Callable[..., Any], operands: tuple[Any, Any]) -> int | None:
    """Returns how large at most what only the program knows is, if it is whole; None if Python is to compute it."""
    if _may_fail_late(symbol, *operands):
        return None
    if not all(isinstance(item, int) for item in operands):
        return 0
    most = most_of(symbol, *map(_bound, operands))
    return None if most is None or most > MOST_WHOLE else most


def _may_fail_late(symbol: Callable[..., Any], left: Any, right: Any) -> bool:
    """Tells whether arithmetic may be an error, or give a number of another type, by what only the program knows."""
    is_of_step = type(right) is Number and right.host is None
    return symbol is operator.pow or may_be_another_kind(symbol, right, varies=is_of_step)


def _compute(symbol: Callable[[Any, Any], Any], left: Any, right: Any) -> Tensor:
    if symbol is operator.pow and isinstance(left, float) and left > 0.0:
        # The same to the last digits, and Inductor keeps an `exp` that is used twice in a place of its own; a `pow` it
        # would compute anew for every 16 elements of every parameter (a third of an MLP's step with Adam).
        return torch.exp(right * math.log(left))
    result: Tensor = symbol(left, right)
    return result


def _define(name: str, method: Callable[..., Any]) -> None:
    setattr(Number, f"__{name}__", method)


def _arithmetic(symbol: Callable[[Any, Any], Any], reflected: bool) -> Callable[[Number, Any], Any]:
    return lambda self, other: self._combine(symbol, other, reflected)


def _comparison(symbol: Callable[[Any, Any], Any]) -> Callable[[Number, Any], Any]:
    return lambda self, other: self._compare(symbol, other)


def _freezing(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, *rest: function(self.freeze(), *released(rest))


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"):
    _define(_name, _arithmetic(getattr(operator, _name), reflected=False))
    _define(f"r{_name}", _arithmetic(getattr(operator, _name), reflected=True))
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    _define(_name, _comparison(getattr(operator, _name)))
_function: Callable[..., Any]
_WHOLE: dict[str, Callable[..., Any]] = {"divmod": divmod, "lshift": operator.lshift, "rshift": operator.rshift}
_WHOLE |= {"and": operator.and_, "or": operator.or_, "xor": operator.xor}
for _name, _function in _WHOLE.items():
    _define(_name, _freezing(_function))
    _define(f"r{_name}", _freezing(lambda value, other, function=_function: function(other, value)))
_PLAIN: list[Callable[..., Any]] = [int, float, hash, repr, str, format, abs, round]
_PLAIN += [operator.index, operator.invert, math.floor, math.ceil, math.trunc]
for _function in _PLAIN:
    _define(_function.__name__, _freezing(_function))
_define("bool", lambda self: self._compare(operator.ne, 0))

# `LightningModule.log` and others accept what is a `numbers.Number`.
numbers.Real.register(Number)
