"""The other package under the name of this one. Each in a process of its own: imports stay for good."""

import subprocess
import sys

import pytest

MODULE = """
class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def training_step(self, batch, batch_idx):
        return self.layer(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


options = dict(max_steps=6, accelerator="cpu", logger=False, enable_checkpointing=False)
options.update(enable_progress_bar=False, enable_model_summary=False)
"""
IMPORTS = "import torch, pytorch_lightning as pl, lightning_sink\n"
ALIASED = "import lightning_sink\nlightning_sink.alias_pytorch_lightning()\n"


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


def test_a_module_and_a_trainer_written_for_the_other_package_train_in_sinks():
    done = run(
        ALIASED + IMPORTS + MODULE + "strategy = lightning_sink.SinkStrategy(3, engine='traced')\n"
        "trainer = pl.Trainer(strategy=strategy, **options)\n"
        "trainer.fit(Module(), torch.utils.data.DataLoader(torch.randn(24, 2), 4))\n"
        "print(trainer.global_step, strategy.active_engine)\n"
    )
    assert done.stdout == "6 traced\n", done.stderr


def test_without_it_the_other_trainer_refuses_the_strategy_and_names_the_mend():
    done = run(IMPORTS + MODULE + "pl.Trainer(strategy=lightning_sink.SinkStrategy(3), **options)\n")
    assert done.returncode == 1
    assert "lightning_sink.alias_pytorch_lightning()" in done.stderr.splitlines()[-1]


def test_both_names_give_the_same_modules_which_keep_their_own_names():
    done = run(
        ALIASED + "lightning_sink.alias_pytorch_lightning()  # again does nothing\n"
        "import pytorch_lightning as pl, pytorch_lightning.callbacks.early_stopping as stopping, lightning_fabric\n"
        "from pytorch_lightning.loggers import CSVLogger\n"
        "import importlib.util, lightning\n"
        "assert pl is lightning.pytorch and lightning_fabric is lightning.fabric\n"
        "assert stopping is lightning.pytorch.callbacks.early_stopping\n"
        "assert CSVLogger is lightning.pytorch.loggers.CSVLogger\n"
        "assert pl.__name__ == pl.__spec__.name == 'lightning.pytorch'\n"
        "assert stopping.__spec__.name == stopping.__name__\n"
        "assert importlib.util.find_spec('pytorch_lightning.not_there') is None\n"
        "import pytorch_lightning.not_there\n"
    )
    assert done.stderr.splitlines()[-1] == "ModuleNotFoundError: No module named 'pytorch_lightning.not_there'"


@pytest.mark.parametrize("name", ["pytorch_lightning", "lightning_fabric"])
def test_it_is_refused_where_the_other_package_is_in_use_already(name):
    done = run(f"import {name}\n{ALIASED}")
    assert f"RuntimeError: `{name}` has been imported already" in done.stderr
