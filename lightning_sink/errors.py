"""What can go wrong, as exceptions and one warning.

Wrong options are `ValueError` or `TypeError`, raised when the strategy is built.
"""

import warnings

BY_WAY = ", by way of "
"""Stands between a line of the user's and that of a library which it led to, where both are named."""


class SinkError(Exception):
    """Base of every error this package raises by itself."""


class UnsupportedError(SinkError, RuntimeError):
    """What was asked for cannot be right in a sink, or not yet; nothing has been trained."""


class CompileError(SinkError, RuntimeError):
    """A step cannot be compiled and `fallback="error"` forbids to run it eagerly."""


class VerificationError(SinkError, RuntimeError):
    """A compiled step gave other numbers than the eager step it stands for."""


class EmptyDatasetError(SinkError, ValueError):
    """A traversal of the training data gave no batch."""


class SinkWarning(UserWarning):
    """A training goes on other than asked for: most often steps run eagerly, right, at plain Lightning's speed."""


class DataTimeoutError(SinkError, TimeoutError):
    """No batch came within `timeout` seconds; says which stage is late, and what to try."""


def warn_at(text: str, where: str) -> None:
    """Gives a `SinkWarning` as if the user's own code did, so that a filter may choose it by its place.

    Args:
        text: What to say.
        where: File and line, as in "train.py:12"; "" where there is no such place. A library's may stand behind them.
    """
    filename, _, line = where.partition(BY_WAY)[0].rpartition(":")
    warnings.warn_explicit(text, SinkWarning, filename or "<unknown>", int(line) if line.isdigit() else 1)


def add_note(error: BaseException, text: str) -> None:
    """Adds a note to an error; Python 3.10 keeps it where later versions and test runners look for it."""
    error.__notes__ = [*getattr(error, "__notes__", []), text]
