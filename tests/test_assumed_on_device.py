"""Steps on a device that Python decides by what they compute: captured for the way that they go, and found out."""

import lightning as L
import pytest
import torch
from torch import nn

from lightning_sink import SinkStrategy
from parity import Net, loader, once
from test_on_device import UNCOMPILED, Still, compared, options, unasked  # noqa: F401

pytestmark = [
    pytest.mark.usefixtures("fake", "unasked"),
    pytest.mark.filterwarnings(f"ignore:{UNCOMPILED}:lightning_sink.errors.SinkWarning"),
]


class NaNs(Still):
    """Leaves out the steps whose loss is no number."""

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        if torch.isnan(loss):
            return None
        self.log("loss", loss)
        return loss


class Outliers(Net):
    """Weighs outliers, draws on the device, and has step counts on the host."""

    def __init__(self):
        super().__init__("adam")
        self.net = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.2), nn.Tanh(), nn.Linear(8, 3))
        self.register_buffer("seen", torch.zeros(()))

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.seen += 1
        self.last = loss.detach()
        if loss.item() > 3.0:
            return loss * 0.1
        return loss


class Checks(Still):
    """Distributions look at their parameters."""

    def training_step(self, batch, batch_idx):
        logits = self.net(batch[0])
        normal = torch.distributions.Normal(logits[:, 0], nn.functional.softplus(logits[:, 1]) + 0.1)
        return -normal.log_prob(batch[1].float()).mean()


def with_outliers(*places, batches=60):
    """Some batches hold what is far off."""

    def make():
        data = loader(batches, last=8)
        x = data.dataset.tensors[0]
        for place in places:
            x[8 * place : 8 * place + 8] = value
        return data

    value = 1e3
    return make


def with_nans(*places):
    def make():
        data = loader(60, last=8)
        for place in places:
            data.dataset.tensors[0][8 * place] = float("nan")
        return data

    return make


class OfWeights(Still):
    """What a distribution refuses is made of weights, which are no numbers behind a step that is left out."""

    def training_step(self, batch, batch_idx):
        spread = torch.distributions.Normal(self.net.weight.mean(), 1.0)
        loss = super().training_step(batch, batch_idx) - 0.01 * spread.log_prob(self.net.bias.sum())
        return None if torch.isnan(loss) else loss


class Decomposes(Still):
    """What the host refuses is asked behind the question."""

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        square = batch[0].T @ batch[0] + torch.eye(6, device=loss.device)
        if not torch.isfinite(square).all():
            return None
        return loss + 0.01 * torch.linalg.cholesky(square).diagonal().log().sum() * self.net.bias.sum()


CASES = {
    "no number, never": (NaNs, with_nans()),
    "no number, in the midst of a row": (NaNs, with_nans(23)),
    "no number, at once and again": (NaNs, with_nans(14, 15, 40)),
    "outliers": (Outliers, with_outliers(17, 44)),
    "outliers where sinks begin and end": (Outliers, with_outliers(29, 30, 59)),
    "distributions": (Checks, with_outliers()),
    "a distribution of weights": (OfWeights, with_nans(23, 24)),
    "what the host refuses": (Decomposes, with_nans(23)),
}


@pytest.mark.narrow(13)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("engine", ["traced", "cudagraph"])
def test_they_are_captured_and_plain_lightnings(name, engine, fake):
    make, data = CASES[name]
    found = compared(make, engine, 30, data=data, max_epochs=3)
    assert not [text for text in found.warned if "runs eagerly" in text]
    assert any(known.captures for known in fake.graphs) == (engine == "cudagraph")


def test_control_a_row_that_is_not_put_back_trains_on_what_is_no_number(monkeypatch):
    from lightning_sink.engine.device.assumed import Before

    monkeypatch.setattr(Before, "put_back", lambda self: None)
    with pytest.raises(AssertionError):
        compared(NaNs, "cudagraph", 30, data=with_nans(23), max_epochs=2)


@pytest.mark.parametrize("accumulate", [3])
def test_windows_of_accumulation(accumulate):
    found = compared(Outliers, "cudagraph", 30, data=with_outliers(17), accumulate_grad_batches=accumulate)
    assert not [text for text in found.warned if "runs eagerly" in text]


class Clamped(L.LightningModule):
    """A class that is beyond the last one is taken for that: behind the question, an index that no kernel takes."""

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(6, 3)

    def training_step(self, batch, batch_idx):
        x, y = batch
        if y.max() > 2:
            y = y.clamp(max=2)
        return nn.functional.cross_entropy(self.net(x), y)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class AsksTheNet(Clamped):
    def training_step(self, batch, batch_idx):
        x, y = batch
        out = self.net(x)
        if out.max() > 100:
            y = y * 0
        return nn.functional.cross_entropy(out, y)


class Samples(Clamped):
    def training_step(self, batch, batch_idx):
        x, y = batch
        out = self.net(x)
        if out.max() > 100:
            out = out / out.max()
        kept = torch.bernoulli((out.detach() / 100 + 0.5).clamp(0, 1))
        return (nn.functional.cross_entropy(out, y, reduction="none") * kept[:, 0]).mean()


class Tables(Clamped):
    """A number that is one of the large table's is not for that one of the small one's."""

    def __init__(self):
        super().__init__()
        self.large, self.small = nn.Embedding(2000, 3), nn.Embedding(8, 3)

    def training_step(self, batch, batch_idx):
        x, y = batch
        place = (x[:, 0].abs() + self.net.bias[0].abs()).long()
        out = self.net(x) + self.large(place)
        if place.max() > 7:
            return nn.functional.cross_entropy(out, y)
        return nn.functional.cross_entropy(out + self.small(place), y)


@pytest.mark.parametrize("make", [AsksTheNet, Samples, Tables])
def test_what_may_end_the_use_of_a_device_is_not_tried(make):
    strategy = SinkStrategy(30, epoch="dataset", engine="cudagraph")
    found = once(make, with_outliers(17), strategy, **options())
    (said,) = [text for text in found.warned if "runs eagerly" in text]
    assert "depends on a truth of the step, and may fail where that is none" in said


@pytest.mark.parametrize("engine", ["traced", "cudagraph"])
def test_where_there_is_no_memory_for_copies_steps_run_the_plain_way(engine, monkeypatch):
    from lightning_sink.engine.device import captured

    made, number = captured.Before, iter(range(10_000))

    def refuse(*arguments):
        if next(number) in (2, 5):
            raise torch.OutOfMemoryError("no memory for that")
        return made(*arguments)

    monkeypatch.setattr(captured, "Before", refuse)
    compared(NaNs, engine, 30, data=with_nans(23), max_epochs=2)
    assert next(number) > 6


def test_what_is_asked_of_the_batch_alone_is_known_before(fake):
    compared(Clamped, "cudagraph", 30, data=lambda: loader(60, last=8))
