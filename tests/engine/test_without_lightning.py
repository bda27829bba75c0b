"""Engine, data and functional rooms train where Lightning and torchmetrics are not installed."""

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import importlib.util, pkgutil, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

BLOCKED = {"lightning", "lightning_fabric", "lightning_utilities", "pytorch_lightning", "torchmetrics"}
sys.meta_path.insert(0, Blocked())

import lightning_sink.data, lightning_sink.engine, lightning_sink.functional
for room in (lightning_sink.data, lightning_sink.engine, lightning_sink.functional):
    for module in pkgutil.iter_modules(room.__path__, room.__name__ + "."):
        # Triton comes with PyTorch for a GPU, and what needs it is imported for one.
        if not module.name.endswith(".weight_gradient") or importlib.util.find_spec("triton"):
            importlib.import_module(module.name)

from torch.utils.data import DataLoader
from lightning_sink.data.options import QueueOptions
from lightning_sink.data.queue import BatchQueue
from lightning_sink.data.road import Road
from lightning_sink.data.traversals import Traversals
from loop import both, loss_of, mlp, sgd, batches, Training

def make():
    module = mlp()
    return Training(module, sgd(module), lambda batch, index: loss_of(module, batch))

loader = DataLoader(batches(4), batch_size=None)
traversals = Traversals([Road(loader)], lambda: iter(loader), endless=True)
queue = BatchQueue(traversals, QueueOptions())
def epoch():
    queue.expect(6)
    return [queue.take()[0] for _ in range(6)]

_, sink = both(make, [epoch(), epoch()])
queue.close()

import torch
from lightning_sink import data_sink

module = mlp()
optimizer = sgd(module)

def step(x, y):
    optimizer.zero_grad()
    loss = loss_of(module, (x, y))
    loss.backward()
    optimizer.step()
    return loss

with data_sink(step, batches(6), 12, engine="traced") as train:
    train()
    assert train.active_engine == "traced" and train.history["loss"].shape == (12,)
assert not BLOCKED & set(sys.modules), BLOCKED & set(sys.modules)
print("compiled", sink.compiled)
"""


def run(script):
    paths = [str(Path(__file__).parent), str(Path(__file__).parents[2])]
    return subprocess.run(
        [sys.executable, "-c", f"import sys\nsys.path[:0] = {paths!r}\n{script}"],
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_trains():
    done = run(SCRIPT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "compiled 7"


def test_control_the_block_holds():
    done = run(SCRIPT + "\nimport lightning")
    assert done.returncode != 0
    assert "No module named 'lightning'" in done.stderr
