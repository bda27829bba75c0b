"""Precisions: all that the Trainer takes on a CPU, and modules that choose their own."""

import torch
from lightning.pytorch.plugins import HalfPrecision, MixedPrecision
from lightning.pytorch.plugins.precision import Precision
from torch import nn

from gallery.case import Small, add, case
from parity import loader

HALF = 5e-2


class Logging(Small):
    """Logs its loss at each step and over the epoch."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 3))

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.log("loss", loss, on_step=True, on_epoch=True)
        return loss


class WithAdam(Logging):
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)


ON_A_CPU = {
    "32-true": 1e-4,
    "64-true": 1e-8,
    "bf16-mixed": HALF,
    "bf16-true": HALF,
    "16-mixed": HALF,  # Lightning takes bf16 in its place
    "16-true": HALF,
}
# Weights that are rounded at each step go their own ways after a while, in two plain trainings too.
SHORT = {"max_epochs": 1, "limit_train_batches": 10}
for precision, tolerance in ON_A_CPU.items():
    short = SHORT if precision == "bf16-true" else {}
    for make in (Logging, WithAdam):
        if (precision, make) == ("16-true", WithAdam):
            continue  # Adam divides by an eps that is 0 in half precision
        add(
            f"precision {precision}, {make.__name__}",
            make,
            options={"precision": precision, **short},
            tolerance=tolerance,
            data=loader,
            inductor=make is WithAdam and precision == "bf16-mixed",
        )
        add(
            f"precision {precision}, {make.__name__}, clipped",
            make,
            options={"precision": precision, "gradient_clip_val": 0.5, **short},
            tolerance=tolerance,
            data=loader,
        )


@case(options={"precision": "64-true"}, tolerance=1e-8)
class DoublePrecisionWithASchedule(WithAdam):
    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=35)
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


@case(tolerance=HALF)
class AutocastInTheStep(Logging):
    """The module asks for it itself, and for full precision in one place."""

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            hidden = self.net[:3](x)
        with torch.autocast("cpu", enabled=False):
            return self.net[3](hidden.float())


@case(options={"precision": "bf16-mixed"}, tolerance=HALF)
class AutocastSwitchedOffInAPart(Logging):
    def forward(self, x):
        hidden = self.net[:3](x)
        with torch.autocast("cpu", enabled=False):
            return self.net[3](hidden.float())


@case(options={"precision": "bf16-mixed"}, tolerance=HALF)
class AutocastSeenByTheStep(Logging):
    """Asks whether it is on."""

    def forward(self, x):
        return self.net(x) * (2.0 if torch.is_autocast_enabled("cpu") else 1.0)


@case(options=SHORT, tolerance=HALF)
class ModuleCastByTheUser(Logging):
    def __init__(self):
        super().__init__()
        self.net.to(torch.bfloat16)

    def forward(self, x):
        return self.net(x.to(torch.bfloat16)).float()


@case(tolerance=HALF)
class PrecisionOfProductsIsLowered(Logging):
    """`torch.set_float32_matmul_precision` is the process's; put back afterwards."""

    def on_fit_start(self):
        self.present = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("medium")

    def on_fit_end(self):
        torch.set_float32_matmul_precision(self.present)


class Doubling(Precision):
    """A plugin of the user's: the loss is doubled before the backward pass."""

    def pre_backward(self, tensor, module):
        return super().pre_backward(2 * tensor, module)


PLUGINS = {
    "a mixed one": lambda: [MixedPrecision("bf16-mixed", "cpu")],
    "a half one": lambda: [HalfPrecision("bf16-true")],
    "the user's own": lambda: [Doubling()],
}
for name, make in PLUGINS.items():
    tolerance = 1e-4 if "own" in name else HALF
    add(f"precision as a plugin, {name}", Logging, options={"plugins": make}, tolerance=tolerance, data=loader)


@case()
class PartsInDouble(Logging):
    """The loss is computed in double precision."""

    def loss(self, batch):
        return nn.functional.cross_entropy(self(batch[0]).double(), batch[1])


@case(options={"precision": "bf16-mixed", "accumulate_grad_batches": 3}, tolerance=HALF)
class AccumulatedInHalf(WithAdam):
    pass


class OfTheDefaultType(Logging):
    """Whole numbers divided, and what is made of Python's numbers, have the type that is the default in the step."""

    def training_step(self, batch, batch_idx):
        share = (batch[1] > 0).sum() / 7
        made = torch.linspace(0, 1, 3).sum() + torch.arange(0, 1, 0.3).sum() + torch.full((), 0.1)
        factor = made * torch.where(batch[1] > 0.3, 0.7, 0.9).mean() * (1 + batch[1].float().mean() * share)
        if share > 0.61:
            factor = 2 * factor
        self.log("factor", factor)
        return super().training_step(batch, batch_idx) * factor


@case(eager="`LightningModule.log()` is called")
class OfItsOwnLog(Logging):
    """It gets the numbers that the step logs, as they are."""

    def training_step(self, batch, batch_idx):
        self.log("counted", (1001 + batch_idx) / 7)
        return super().training_step(batch, batch_idx)

    def log(self, name, value, **options):
        super().log(name, value if isinstance(value, torch.Tensor) else 2 * value, **options)


for precision in ("64-true", "bf16-true"):
    add(
        f"precision {precision}, of the default type",
        OfTheDefaultType,
        options={"precision": precision, **SHORT},
        tolerance=ON_A_CPU[precision],
        data=loader,
        inductor=precision == "64-true",
    )
