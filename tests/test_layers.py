"""Who may import what, read from the source: importing any submodule runs `__init__`, so `sys.modules` cannot tell."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "lightning_sink"
FILES = sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py"))

# The rooms inside the engine, in the order in which one may import those before it, and itself; all may import the
# engine's own files named here, and these nothing but each other.
IN_ENGINE = ["numbers", "state", "tracing", "compiler", "device", "programs"]
SHARED = {
    "failures",
    "history",
    "interrupt",
    "operands",
    "passages",
    "private",
    "shadows",
    "source",
    "step",
    "waits",
    "watch",
}

# The rooms of the package, each with the rooms it may import; nothing may import `__init__`.
SHARED_BY_ALL = {"plan", "checks", "errors", "held", "names", "whose"}
BELOW_TRAINER = {"engine", "data"} | SHARED_BY_ALL
ROOMS = {
    "__about__": set(),
    "aliases": set(),
    "errors": set(),
    "checks": set(),
    "held": set(),
    "names": set(),
    "whose": set(),
    "plan": set(),
    "data": {"data"} | SHARED_BY_ALL,
    "engine": {"engine"} | SHARED_BY_ALL,
    **{f"engine/{room}": {"engine"} | SHARED_BY_ALL for room in IN_ENGINE},
    "functional": {"functional"} | BELOW_TRAINER,
    "trainer": {"trainer"} | BELOW_TRAINER,
    "callbacks": {"trainer"} | BELOW_TRAINER,
    "datamodule": {"trainer"} | BELOW_TRAINER,
    "strategy": {"callbacks", "datamodule", "trainer"} | BELOW_TRAINER,
}
ROOMS["__init__"] = set(ROOMS)
STDLIB_ONLY = {"__about__", "aliases", "checks", "errors", "held", "names", "plan", "whose"}
WITH_LIGHTNING = {"__init__", "callbacks", "datamodule", "strategy", "trainer"}
WITHOUT_TORCHMETRICS = {"data", "engine"}

LIGHTNING = {"lightning", "lightning_fabric", "lightning_utilities", "pytorch_lightning"}
PRIVATE = {
    "_accelerator_connector",
    "_batches_that_stepped",
    "_call_callback_hooks",
    "_call_lightning_module_hook",
    "_call_strategy_hook",
    "_callback_connector",
    "_checkpoint_connector",
    "_combined_loader",
    "_current_fx_name",
    "_data_connector",
    "_data_fetcher",
    "_first_loop_iter",
    "_logger_connector",
    "_num_ready_batches_reached",
    "_results",
    "_should_accumulate",
    "_should_check_val_fx",
    "_should_reload_train_dl",
    "_signal_connector",
    "_skip_backward",
}


def room_of(file: str) -> str:
    room, *inner = file.split("/")
    return f"engine/{inner[0]}" if room == "engine" and len(inner) > 1 else room.removesuffix(".py")


def is_up(file: str, name: list[str]) -> bool:
    """Tells whether a file of the engine imports another one that is above it; those that choose engines are on top."""
    inner = file.removesuffix(".py").split("/")[1:]
    floor = IN_ENGINE.index(inner[0]) if inner[0] in IN_ENGINE else -1 if inner[0] in SHARED else len(IN_ENGINE)
    if floor == len(IN_ENGINE):
        return False
    return not name or not (name[0] in SHARED or name[0] in IN_ENGINE[: floor + 1])


def imported(tree: ast.Module, file: str) -> Iterator[tuple[int, str]]:
    """Yields line and full dotted name of everything that a file of the package imports, wherever it does."""
    package = ["lightning_sink", *file.split("/")[:-1]]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            base = base + (node.module.split(".") if node.module else [])
            yield from ((node.lineno, ".".join([*base, alias.name])) for alias in node.names)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in {"import_module", "__import__"} and isinstance(node.args[0].value, str):
                yield node.lineno, node.args[0].value


def private_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yields each use of a private name of Lightning that has one of the known spellings."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in PRIVATE:
            yield node.lineno, node.attr
        elif isinstance(node, ast.Constant) and node.value in PRIVATE:  # getattr and its like
            yield node.lineno, str(node.value)


def violations(source: str, file: str) -> list[str]:
    room = room_of(file)
    if room not in ROOMS:
        return [f"{file}: has no place in ROOMS of {Path(__file__).name}"]
    tree = ast.parse(source)
    found = []
    for line, name in imported(tree, file):
        root, *rest = name.split(".")
        if root == "lightning_sink":
            upwards = rest[:1] == ["engine"] and room.startswith("engine") and is_up(file, rest[1:])
            if not rest or rest[0] not in ROOMS[room] or upwards:
                found.append((line, f"{room} may not import {name}"))
        elif root in LIGHTNING:
            if room not in WITH_LIGHTNING:
                found.append((line, f"{room} works without Lightning, so it may not import {name}"))
            if room != "trainer" and any(part.startswith("_") and not part.startswith("__") for part in rest):
                found.append((line, f"only trainer/ may import what is private to Lightning: {name}"))
        elif root == "torchmetrics" and room.split("/")[0] in WITHOUT_TORCHMETRICS:
            found.append((line, f"{room} works without torchmetrics, so it may not import {name}"))
        elif room in STDLIB_ONLY and root not in sys.stdlib_module_names:
            found.append((line, f"{room} imports the standard library only, not {name}"))
    if room != "trainer":
        found += [
            (line, f"only trainer/ may use what is private to Lightning: {name}") for line, name in private_names(tree)
        ]
    return [f"{file}:{line}: {text}" for line, text in sorted(found)]


@pytest.mark.parametrize("file", FILES)
def test_imports_only_go_down(file):
    assert violations((PACKAGE / file).read_text(), file) == []


def test_the_package_is_found():
    assert {"plan.py", "errors.py"} <= set(FILES)


@pytest.mark.parametrize(("file", "source"), [
    # Lightning
    ("engine/step.py", "import lightning"),
    ("engine/step.py", "import lightning.pytorch as pl"),
    ("engine/step.py", "from lightning import Trainer"),
    ("engine/step.py", "from lightning.pytorch.utilities import rank_zero"),
    ("engine/step.py", "import pytorch_lightning"),
    ("engine/step.py", "import lightning_fabric"),
    ("engine/step.py", "import lightning_utilities.core"),
    ("engine/step.py", "def f():\n    import lightning"),
    ("engine/step.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import lightning"),
    ("engine/step.py", "import importlib\nimportlib.import_module('lightning.pytorch')"),
    ("engine/step.py", "__import__('lightning')"),
    ("data/queue.py", "import lightning"),
    ("data/deeper/queue.py", "import lightning"),
    ("functional.py", "import lightning"),
    ("plan.py", "import lightning"),
    ("errors.py", "import lightning"),
    # torchmetrics
    ("engine/step.py", "import torchmetrics"),
    ("data/queue.py", "from torchmetrics import Metric"),
    # other rooms
    ("engine/step.py", "from lightning_sink.data import queue"),
    ("engine/step.py", "from lightning_sink import data"),
    ("engine/step.py", "import lightning_sink.data.queue"),
    ("engine/step.py", "from ..data import queue"),
    ("engine/step.py", "from .. import data"),
    ("engine/deeper/step.py", "from lightning_sink.engine import step"),
    ("engine/state/slots.py", "from ...data import queue"),
    ("engine/state/slots.py", "import torchmetrics"),
    ("engine/state/slots.py", "from lightning_sink.engine.tracing.record import Recorder"),
    ("engine/state/slots.py", "from lightning_sink.engine import tracing"),
    ("engine/state/slots.py", "from lightning_sink.engine import compiled"),
    ("engine/state/slots.py", "import lightning_sink.engine"),
    ("engine/programs/maker.py", "from ..make import make_engine"),
    ("engine/step.py", "from lightning_sink.engine.state.slots import Slots"),
    ("engine/step.py", "from . import eager"),
    ("engine/__init__.py", "from ..data import queue"),
    ("engine/step.py", "from lightning_sink.trainer.loops import SinkLoop"),
    ("engine/step.py", "from lightning_sink.strategy import SinkStrategy"),
    ("engine/step.py", "from lightning_sink import SinkStrategy"),
    ("engine/step.py", "from lightning_sink import *"),
    ("engine/step.py", "import lightning_sink"),
    ("data/queue.py", "from lightning_sink.engine import step"),
    ("data/queue.py", "from lightning_sink.trainer import loops"),
    ("data/queue.py", "from lightning_sink import strategy"),
    ("trainer/loops.py", "from lightning_sink.strategy import SinkStrategy"),
    ("trainer/loops.py", "from lightning_sink import callbacks"),
    ("functional.py", "from lightning_sink.trainer import loops"),
    ("callbacks.py", "from . import strategy"),
    # the standard library only
    ("plan.py", "import torch"),
    ("plan.py", "from lightning_sink.errors import SinkError"),
    ("errors.py", "from .plan import Limits"),
    ("errors.py", "import numpy as np"),
    # private to Lightning
    ("strategy.py", "from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop"),
    ("strategy.py", "from lightning.pytorch.trainer import call, _x"),
    ("strategy.py", "from lightning.pytorch.utilities._pytree import tree_flatten"),
    ("strategy.py", "import lightning.pytorch._graveyard"),
    ("strategy.py", "def f(trainer):\n    return trainer.fit_loop._data_fetcher"),
    ("callbacks.py", "def f(trainer):\n    trainer.fit_loop._combined_loader = None"),
    ("datamodule.py", "def f(loop):\n    loop._batches_that_stepped += 1"),
    ("__init__.py", "def f(loop):\n    return getattr(loop, '_results')"),
    ("engine/step.py", "def f(trainer):\n    trainer._logger_connector.on_batch_end()"),
    # a file that nobody thought of
    ("helpers.py", ""),
    ("helpers/loops.py", ""),
])  # fmt: skip
def test_control_a_wrong_import_is_caught(file, source):
    assert len(violations(source, file)) == 1


@pytest.mark.parametrize(("file", "source"), [
    ("engine/step.py", "import torch\nfrom lightning_sink.engine.watch import Hazard\nfrom . import watch"),
    ("engine/device/cuda.py", "from lightning_sink.engine.state.slots import Slots\nfrom . import block"),
    ("engine/device/cuda.py", "from .. import step\nfrom lightning_sink.engine.compiler import row"),
    ("engine/make.py", "from lightning_sink.engine import compiled\nfrom .programs import maker\nfrom . import step"),
    ("engine/step.py", "from lightning_sink.errors import SinkError\nfrom ..plan import Limits"),
    ("engine/make.py", "from .data import Data  # lightning_sink.engine.data"),
    ("data/queue.py", "import torchdata\nfrom lightning_sink.data import batch\nfrom lightning_sink import errors"),
    ("functional.py", "import torchmetrics\nfrom . import data, engine"),
    ("trainer/loops.py", "from lightning_sink import data, engine, errors, plan\nfrom . import logging"),
    ("trainer/fetcher.py", "from lightning.pytorch.loops.fetchers import _DataFetcher\ndef f(t): t._data_fetcher = 1"),
    ("strategy.py", "from lightning.pytorch.strategies import SingleDeviceStrategy\nfrom .trainer import loops"),
    ("callbacks.py", "import lightning as L\nfrom lightning.pytorch.callbacks import Callback"),
    ("__init__.py", "from lightning import __version__\nfrom lightning_sink import strategy, __about__"),
    ("plan.py", "from __future__ import annotations\nimport dataclasses, math"),
])  # fmt: skip
def test_control_a_right_import_is_not(file, source):
    assert violations(source, file) == []
