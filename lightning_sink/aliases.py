"""Modules and Trainers written for `pytorch_lightning` become those of `lightning`: one package under both names.

The two packages hold the same code twice, so their classes are strangers to each other: a strategy of one is refused
by the Trainer of the other. While a process imports, `sys.meta_path` is asked for every module that is not there yet;
the finder below answers for the names of the other package with the modules of `lightning`.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

ALIASES = {"pytorch_lightning": "lightning.pytorch", "lightning_fabric": "lightning.fabric"}


def alias_pytorch_lightning() -> None:
    """Makes `pytorch_lightning` another name of `lightning.pytorch` in this process.

    Afterwards `import pytorch_lightning as pl`, in the user's code or in that of a library, gives the package that
    `SinkStrategy` is for, whether or not `pytorch_lightning` is installed. To be called before anything imports that
    name; calling it again does nothing. It is in force in the processes that are forked from this one; one that is
    spawned has to call it as well.

    Raises:
        RuntimeError: `pytorch_lightning`, or its `lightning_fabric`, has been imported already.
    """
    if any(isinstance(finder, _Aliases) for finder in sys.meta_path):
        return
    imported = [name for name in ALIASES if name in sys.modules]
    if imported:
        raise RuntimeError(
            f"`{imported[0]}` has been imported already, so modules of it may be in use. Call"
            " `lightning_sink.alias_pytorch_lightning()` before the first import of it, and of libraries that use it."
        )
    sys.meta_path.insert(0, _Aliases())


class _Aliases(MetaPathFinder):
    """Finds modules of `lightning` under the names of the other package."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        top, _, rest = fullname.partition(".")
        if top not in ALIASES:
            return None
        wanted = f"{ALIASES[top]}.{rest}" if rest else ALIASES[top]
        try:
            module = importlib.import_module(wanted)
        except ModuleNotFoundError as error:
            if error.name == wanted:
                return None
            raise
        return ModuleSpec(fullname, _Found(module), is_package=hasattr(module, "__path__"))


class _Found(Loader):
    """Hands over a module that is there already."""

    def __init__(self, module: ModuleType) -> None:
        self.module = module
        self.own_spec = module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self.module

    def exec_module(self, module: ModuleType) -> None:
        # The import system has written the alias's spec there, by which relative imports would go.
        module.__spec__ = self.own_spec
