"""SinkStrategy from the command line of Lightning, each time in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
{imports}
import torch
from lightning.pytorch.cli import LightningCLI
from lightning.pytorch.demos.boring_classes import BoringDataModule, BoringModel


class Model(BoringModel):
    def on_train_end(self):
        strategy = self.trainer.strategy
        print("RESULT", type(strategy).__name__, strategy.sink_size, strategy.epoch, strategy.active_engine,
              self.trainer.global_step, len(strategy.history["loss"]))


if __name__ == "__main__":
    LightningCLI(Model, BoringDataModule, trainer_defaults=dict(
        max_epochs=2, logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        accelerator="cpu", limit_val_batches=0))
"""

CLASS_PATH = """
trainer:
  strategy:
    class_path: lightning_sink.SinkStrategy
    init_args:
      sink_size: 9
      epoch: dataset
      engine: eager
"""

BY_NAME = """
trainer:
  strategy: sink
"""


def run(*arguments, imports=""):
    Path("train.py").write_text(SCRIPT.format(imports=imports))
    package = str(Path(__file__).parents[1])
    path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
    return subprocess.run(
        [sys.executable, "train.py", "fit", *arguments],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=200,
    )


def result(done):
    assert done.returncode == 0, done.stderr[-3000:]
    return next(line for line in done.stdout.splitlines() if line.startswith("RESULT"))


def test_a_config_file_with_class_path_and_init_args():
    Path("given.yaml").write_text(CLASS_PATH)
    # 64 batches an epoch: 7 sinks of 9 and one of 1.
    assert result(run("--config", "given.yaml")) == "RESULT SinkStrategy 9 dataset eager 128 1"


def test_dotted_options():
    done = run(
        "--trainer.strategy=lightning_sink.SinkStrategy",
        "--trainer.strategy.sink_size=9",
        "--trainer.strategy.engine=traced",
    )
    assert result(done) == "RESULT SinkStrategy 9 sink traced 18 9"


def test_a_config_file_with_the_registered_name():
    Path("given.yaml").write_text(BY_NAME)
    line = result(run("--config", "given.yaml", imports="import lightning_sink"))
    name, size, epoch, _, steps, history = line.split()[1:]
    assert (name, size, epoch, steps, history) == ("SinkStrategy", "-1", "sink", "128", "64")


@pytest.mark.parametrize("option", ["0", "1.5"])
def test_a_wrong_option_is_refused_with_what_is_accepted(option):
    done = run("--trainer.strategy=lightning_sink.SinkStrategy", f"--trainer.strategy.sink_size={option}")
    assert done.returncode != 0
    assert "sink_size" in done.stderr
    assert f"got {option}" in done.stderr or "Expected a <class 'int'>" in done.stderr
