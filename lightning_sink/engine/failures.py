"""Errors of compiled steps: code in C++ hands out texts, and a Python user expects the types of plain training."""

from __future__ import annotations

from torch.linalg import LinAlgError  # type: ignore[attr-defined]  # public, though not in its list of names

from lightning_sink.engine.watch import Hazard
from lightning_sink.errors import add_note

OUT_OF_BOUNDS = "index out of bounds"
"""What Inductor says of a wrong index, before the condition that it breaks."""

INVALID_VALUES = "but found invalid values"
"""What torch says, at its end, of the parameters or the value that a distribution refuses."""

ASSUMED = "a value by which the recorded step went its way is another one"
"""What a program says that has done nothing, since its step goes another way."""


class AssumptionFailedError(Exception):
    """A compiled step goes another way than the recorded one, or fails on it, and has changed nothing."""


class RefusedError(ValueError):
    """A step is not to be compiled, for a reason of which users are told as it stands."""

    def __init__(self, hazard: Hazard) -> None:
        super().__init__(hazard.what)
        self.hazard = hazard


_LINALG = ("linalg.", "torch.linalg.")
_NOTE = (
    "[lightning_sink] in a compiled step, of {}: it may have changed weights or buffers before it failed."
    ' The eager engine (`engine="eager"`) names the line.'
)


def error_of(message: str) -> Exception:
    """Returns the error of a compiled step that says this."""
    _, found, condition = message.partition(OUT_OF_BOUNDS)
    if found:
        return IndexError(f"{found}{condition}")
    if message.endswith(INVALID_VALUES):
        return ValueError(message)
    if ASSUMED in message:
        return AssumptionFailedError(message)
    return LinAlgError(message) if message.startswith(_LINALG) else RuntimeError(message)


def with_type(error: Exception) -> Exception:
    """Returns an error that torch raised for a text; itself, unless plain training has another type for it."""
    named = error_of(str(error))
    return error if type(error) is not RuntimeError or type(named) is RuntimeError else named


def in_short(error: Exception) -> str:
    """Returns an error's type and the first line of its text."""
    first, _, _ = str(error).partition("\n")
    return f"{type(error).__name__}: {first}"


def note_step(error: Exception, place: str) -> None:
    """Adds to an error in which step it was raised."""
    add_note(error, _NOTE.format(place))
