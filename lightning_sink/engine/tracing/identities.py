"""Whether a recorded step asks which tensor it finds: `self.mask is self.none`, `id(mask)`, `lru_cache`, a key.

No operation shows it, nor does the tensor: another one that hooks put in its place looks the same. `Identities` knows
which tensors a step has asked so; a program is for these alone, where it may else take what a place holds by then.
"""

from __future__ import annotations

import builtins
import dis
from collections.abc import Iterable
from functools import lru_cache
from types import CodeType, FrameType

from torch import Tensor

from lightning_sink.engine.watch import is_user_frame
from lightning_sink.whose import is_pythons

_HASH = Tensor.__hash__.__code__
_ASK = frozenset(["is_", "is_not", "storage_offset", "_base", "_is_view", "is_inference", "_version"])
"""Names of what does what `is` does, and of what else tells tensors apart that look alike."""


class Identities:
    """What one recorded step asks."""

    def __init__(self) -> None:
        self._hashed = set[int]()
        self._asks_any = self._gets_gradients = False

    def called(self, frame: FrameType) -> None:
        """Takes note of a function that is about to run: dictionaries, sets and caches ask for a key's hash."""
        if frame.f_code is _HASH and frame.f_back is not None and is_user_frame(frame.f_back):
            self._hashed.add(id(frame.f_locals["self"]))

    def finish(self, codes: Iterable[CodeType]) -> None:
        """Takes the code that ran in the step."""
        codes = [code for code in codes if not is_pythons(code)]
        self._asks_any, self._gets_gradients = any(map(_compares, codes)), any(map(_gets_gradients, codes))

    def may_ask(self, tensor: Tensor, *, is_gradient: bool) -> bool:
        """Tells whether the step may have asked whether this is the one.

        Args:
            tensor: A tensor that it found.
            is_gradient: Whether it is a parameter's gradient and held nowhere else: whoever asks for that names it.
        """
        return (self.asks_of_gradients if is_gradient else self._asks_any) or id(tensor) in self._hashed

    @property
    def asks_of_gradients(self) -> bool:
        """Whether the step may have asked which tensor is in a gradient."""
        return self._asks_any and self._gets_gradients


@lru_cache(maxsize=4096)
def _compares(code: CodeType) -> bool:
    """Tells whether some code says `is`, of something other than a constant, or a type of Python's, on the right."""
    right = ""
    for each in dis.get_instructions(code):
        is_global = each.opname in ("LOAD_GLOBAL", "LOAD_NAME")
        if (each.opname == "IS_OP" and (right or each.is_jump_target)) or (is_global and each.argval == "id"):
            return True
        is_plain = "CONST" in each.opname or (is_global and hasattr(builtins, str(each.argval)))
        right = "" if is_plain and not each.is_jump_target else each.opname
    return not _ASK.isdisjoint(code.co_names)


@lru_cache(maxsize=4096)
def _gets_gradients(code: CodeType) -> bool:
    """Tells whether some code has `p.grad`, or the attribute's name: not `torch.autograd.grad`."""
    before = None
    for each in dis.get_instructions(code):
        if each.argval == "grad" and ("CONST" in each.opname or ("_ATTR" in each.opname and before != "autograd")):
            return True
        before = each.argval if each.opname != "CACHE" else before
    return False
