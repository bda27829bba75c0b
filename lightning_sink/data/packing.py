"""Batches that are alike, put into their places side by side: in C where that can be compiled, in Python elsewhere.

A small step takes a GPU some ten microseconds, in which its host has to pack a batch. Python takes three of them for a
batch of two tensors, C less than one.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sysconfig
from collections.abc import Callable, Sequence
from ctypes import memmove
from functools import cache
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, cast

from torch import Tensor

from lightning_sink.data.batch import Signature, flatten
from lightning_sink.data.listed_texts import Looked
from lightning_sink.data.private import likeness

Pack = Callable[[Any, int], bool]
"""Takes a batch and its number; tells whether it is like the others, and lies in its place now."""

_SOURCE = Path(__file__).with_suffix(".c")

_EXACT = ["-fno-fast-math", "-fno-unsafe-math-optimizations"]
"""Takes back what may stand in `CC`: a library of that kind makes who loads it round small numbers to zero."""

_PATIENCE = 60.0
"""Seconds that a compiler may take, which takes a fraction of one."""


def address_of(tensor: Tensor) -> int:
    """Returns where a tensor's memory begins.

    Raises:
        RuntimeError: It has none (`untyped_storage().resize_(0)`): to copy it would end the process.
    """
    address = tensor.data_ptr()
    if not address and tensor.nbytes:
        raise RuntimeError("a tensor of the batch has no memory")
    return address


class Column(NamedTuple):
    """Where what comes at one place of each batch goes.

    Attributes:
        begin: Where the first batch's begins.
        step: Bytes from one to the next.
        nbytes: Bytes of each, if it lies in one piece, as it will there.
        places: What those are copied into that do not; None for those that do, which are moved.
    """

    begin: int
    step: int
    nbytes: int
    places: Sequence[Tensor] | None


def packer(
    batch: Any, leaves: list[Tensor], signature: Signature, columns: list[Column], looked: Looked | None = None
) -> Pack:
    """Returns what packs batches like this one, which has these tensors and signature, into columns.

    `looked` is what the signature was made with.
    """
    items = batch if type(batch) in (tuple, list) else batch.values() if type(batch) is dict else ()
    is_flat = len(items) == len(leaves) and all(type(item) is Tensor for item in items)
    kind, names = type(batch) if is_flat else None, tuple(batch) if is_flat and type(batch) is dict else None
    native = compiled() if is_flat and all(column.places is None for column in columns) else None
    if native is None or len(leaves) > native.MOST or any(type(name) is not str for name in names or ()):
        return _in_python(kind, names, leaves, signature, columns, looked)
    packed: Pack = native.Packer(kind, names, Tensor, likeness(leaves), [column[:3] for column in columns])
    return packed


def _in_python(
    kind: type[Any] | None,
    names: tuple[Any, ...] | None,
    leaves: list[Tensor],
    signature: Signature,
    columns: list[Column],
    looked: Looked | None,
) -> Pack:
    """Returns what packs batches in Python.

    `kind` is the type of a batch that holds tensors and nothing else, None for others, which are flattened; `names` are
    the keys of a dict.
    """
    are_alike = likeness(leaves)
    keys = None if names is None else [(type(name), name) for name in names]

    def leaves_of(batch: Any) -> Sequence[Any] | None:
        if type(batch) is not kind:
            found, look = flatten(batch, looked)
            return found if look == signature else None
        if keys is None:
            return batch  # type: ignore[no-any-return]
        return [*batch.values()] if [(type(name), name) for name in batch] == keys else None

    def pack(batch: Any, number: int) -> bool:
        tensors = leaves_of(batch)
        if tensors is None or len(tensors) != len(columns):
            return False
        for tensor in tensors:  # each is looked at once
            if type(tensor) is not Tensor or tensor.is_nested or tensor.__dict__:
                return False
        if not are_alike(*tensors):
            return False
        for tensor, (begin, step, nbytes, places) in zip(tensors, columns, strict=True):
            address = address_of(tensor)
            if places is None:
                memmove(begin + number * step, address, nbytes)
            else:
                places[number].copy_(tensor)
        return True

    return pack


@cache
def compiled() -> Any:
    """Returns `packing.c` as a module, compiled once in a process; None where there is no compiler that does it.

    Nor is there one for a Python without its lock, which keeps a batch as it is meanwhile.
    """
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return None
    commands = [os.environ.get("CC", ""), sysconfig.get_config_var("CC") or "", "cc", "gcc", "clang"]
    for command in dict.fromkeys(commands):
        try:
            return _compiled_by(shlex.split(command))
        except (OSError, ValueError, subprocess.SubprocessError, ImportError):
            continue  # another one may do it; and Python packs as well, and takes longer
    return None


def _compiled_by(compiler: list[str]) -> Any:
    """Returns the module, compiled so.

    Raises:
        OSError: There is no such compiler, or no memory for files.
        ValueError: There is none.
        subprocess.SubprocessError: It fails, or takes too long.
        ImportError: What it makes cannot be loaded.
    """
    found = shutil.which(compiler[0]) if compiler else None
    if found is None:
        raise ValueError("there is no such compiler")
    # Some file systems let nobody take away a library that is loaded.
    with TemporaryDirectory(prefix="lightning_sink", ignore_cleanup_errors=True) as folder:
        library = str(Path(folder, f"packing{sysconfig.get_config_var('EXT_SUFFIX')}"))
        options = ["-O2", "-fPIC", "-shared", *_EXACT, f"-I{sysconfig.get_path('include')}", "-o", library]
        subprocess.run(
            [found, *compiler[1:], *options, str(_SOURCE)], check=True, capture_output=True, timeout=_PATIENCE
        )
        loader = ExtensionFileLoader("packing", library)
        module = module_from_spec(cast(ModuleSpec, spec_from_loader("packing", loader)))
        loader.exec_module(module)
    return module
