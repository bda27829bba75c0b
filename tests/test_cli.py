"""SinkStrategy from the command line of Lightning."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from lightning.pytorch.cli import LightningCLI
from lightning.pytorch.demos.boring_classes import BoringDataModule, BoringModel

from parity import QUIET

SCRIPT = """
from test_cli import train

if __name__ == "__main__":
    train()
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


class Model(BoringModel):
    def on_train_end(self):
        strategy = self.trainer.strategy
        steps, losses = self.trainer.global_step, len(strategy.history["loss"])
        print(
            "RESULT", type(strategy).__name__, strategy.sink_size, strategy.epoch, strategy.active_engine, steps, losses
        )


def train(arguments=None):
    """Trains as the command line says: the process's own where no arguments are given."""
    defaults = {"logger": False, "enable_checkpointing": False, "limit_val_batches": 0, "max_epochs": 2}
    options = {"trainer_defaults": {**QUIET, **defaults}, "seed_everything_default": 7}
    LightningCLI(Model, BoringDataModule, args=arguments, **options)


def result(said):
    return next(line for line in said.splitlines() if line.startswith("RESULT"))


@pytest.fixture
def run(capsys, monkeypatch):
    """Trains in this process; returns the line of the result."""

    def trained(*arguments):
        monkeypatch.setattr(sys, "argv", ["train.py"])
        train(["fit", *arguments])
        return result(capsys.readouterr().out)

    return trained


@pytest.mark.narrow
def test_a_config_file_with_class_path_and_init_args_in_a_process_of_its_own():
    Path("given.yaml").write_text(CLASS_PATH)
    Path("train.py").write_text(SCRIPT)
    tests = Path(__file__).parent
    path = os.pathsep.join(filter(None, [str(tests.parent), str(tests), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "train.py", "fit", "--config", "given.yaml"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    # 64 batches an epoch: 7 sinks of 9 and one of 1.
    assert result(done.stdout) == "RESULT SinkStrategy 9 dataset eager 128 1"


def test_dotted_options(run):
    line = run(
        "--trainer.strategy=lightning_sink.SinkStrategy",
        "--trainer.strategy.sink_size=9",
        "--trainer.strategy.engine=traced",
    )
    assert line == "RESULT SinkStrategy 9 sink traced 18 9"


def test_a_config_file_with_the_registered_name(run):
    Path("given.yaml").write_text(BY_NAME)
    name, size, epoch, _, steps, history = run("--config", "given.yaml").split()[1:]
    assert (name, size, epoch, steps, history) == ("SinkStrategy", "-1", "sink", "128", "64")


@pytest.mark.parametrize("option", ["0", "1.5"])
def test_a_wrong_option_is_refused_with_what_is_accepted(option, run, capsys):
    with pytest.raises((SystemExit, ValueError)) as caught:
        run("--trainer.strategy=lightning_sink.SinkStrategy", f"--trainer.strategy.sink_size={option}")
    said = capsys.readouterr().err + str(caught.value)
    assert "sink_size" in said
    assert f"got {option}" in said or "Expected a <class 'int'>" in said
