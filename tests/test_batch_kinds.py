"""Batches of every kind, transfer hooks, precisions and loaders: trained as plain Lightning trains them."""

import collections
import dataclasses
import math

import lightning as L
import pytest
import torch
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from lightning_sink import SinkStrategy
from lightning_sink.engine.programs import maker
from lightning_sink.engine.state.granted import Granted
from parity import Net, assert_parity, both, compare, loader, once

ENGINES = pytest.mark.parametrize("engine", ["eager", "traced"])
Pair = collections.namedtuple("Pair", "x y")


@dataclasses.dataclass
class Example:
    x: torch.Tensor
    y: torch.Tensor
    name: str = "example"


KINDS = {
    "tuple": (lambda x, y: (x, y), lambda batch: batch),
    "dict": (lambda x, y: {"x": x, "y": y}, lambda batch: (batch["x"], batch["y"])),
    "nested": (
        lambda x, y: {"in": [{"x": x}, (y, [x * 2])], "more": {"y": y}},
        lambda batch: (batch["in"][0]["x"] + batch["in"][1][1][0], batch["more"]["y"]),
    ),
    "ordered": (
        lambda x, y: collections.OrderedDict(x=x, y=y),
        lambda batch: tuple(batch.values()),
    ),
    "namedtuple": (Pair, lambda batch: (batch.x, batch.y)),
    "dataclass": (Example, lambda batch: (batch.x, batch.y)),
    "with a string": (lambda x, y: (x, y, "train", ["a", "b"]), lambda batch: batch[:2]),
    "with an int": (lambda x, y: (x, 3, y), lambda batch: (batch[0] * batch[1], batch[2])),
    "with a float": (lambda x, y: [x, y, 0.5], lambda batch: (batch[0] * batch[2], batch[1])),
    "with None": (lambda x, y: (None, x, {"nothing": None}, y), lambda batch: (batch[1], batch[3])),
    "single tensor": (lambda x, y: x, lambda batch: (batch, batch.argmax(1) % 3)),
    "same tensor twice": (lambda x, y: (x, x, y), lambda batch: (batch[0] + batch[1], batch[2])),
    "a view": (lambda x, y: (x.t().contiguous().t(), y), lambda batch: batch),
}


class Reads(Net):
    """Takes its two tensors out of batches of some kind."""

    def __init__(self, kind="tuple"):
        super().__init__()
        self.kind = kind

    def training_step(self, batch, batch_idx):
        return super().training_step(list(KINDS[self.kind][1](batch)), batch_idx)


class Plain(Reads):
    """No normalization: it makes much of the rounding of few rows and of low precision."""

    def __init__(self, kind="tuple"):
        super().__init__(kind)
        self.net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def of_kind(kind, batches=17, last=3):
    dataset = loader(batches, last=last).dataset

    def collate(items):
        x, y = (torch.stack(parts) for parts in zip(*items, strict=True))
        return KINDS[kind][0](x, y)

    return DataLoader(dataset, batch_size=8, collate_fn=collate)


@pytest.mark.narrow(11)
@ENGINES
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_batch(kind, engine):
    compare(lambda: Reads(kind), engine, data=lambda: of_kind(kind, 8), sink_size=6)


def test_control_other_data_is_seen():
    plain, _ = compare(Reads, "eager", data=lambda: of_kind("tuple", 5))
    _, sink = compare(Reads, "eager", data=lambda: of_kind("tuple", 5, last=4))
    with pytest.raises(AssertionError):
        assert_parity(plain, sink)


@ENGINES
@pytest.mark.parametrize("last", [2, 8])
def test_a_last_batch_of_another_shape(last, engine):
    compare(Plain, engine, data=lambda: of_kind("tuple", 6, last), max_epochs=6, sink_size=-1)


class Changing(Net):
    """A number in the batch decides what is trained."""

    def training_step(self, batch, batch_idx):
        x, y, scale = batch
        return super().training_step([x * scale, y], batch_idx)


class Flipped(Net):
    """An attribute of a tensor decides what is trained."""

    def training_step(self, batch, batch_idx):
        x, y = batch
        return super().training_step([-x if x.flipped else x, y], batch_idx)


class Marked:
    """Batches whose tensors have an attribute; in memory that is filled again, or each in its own."""

    def __init__(self, refills):
        self.batches, self.refills = [*loader(60, last=8)], refills

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        held = self.batches[0][0].clone()
        for number, (x, y) in enumerate(self.batches):
            given = held.copy_(x) if self.refills else x
            given.flipped = number >= 40
            yield given, y


@pytest.mark.narrow(11)
@ENGINES
@pytest.mark.parametrize("refills", [False, True])
def test_attributes_of_tensors_are_values_of_the_batch(engine, refills):
    compare(Flipped, engine, data=lambda: Marked(refills), sink_size=30)


def test_an_attribute_that_keeps_changing_is_named():
    class Numbered(Net):
        def training_step(self, batch, batch_idx):
            x, y = batch
            return super().training_step([x * x.scale, y], batch_idx)

    batches = [*loader(60, last=8)]
    for number, (x, _) in enumerate(batches):
        x.scale = 1.0 + number / 60
    data = lambda: DataLoader(batches, batch_size=None)  # noqa: E731
    compare(Numbered, "traced", data=data, sink_size=30, eager="`batch[0].scale`")


def with_numbers(numbers):
    # Made once: going through a loader draws from the global generator.
    batches = [(*batch, number) for batch, number in zip(loader(20), numbers, strict=True)]
    return lambda: DataLoader(batches, batch_size=None)


@pytest.mark.narrow(11)
@ENGINES
def test_a_number_that_changes_is_not_frozen(engine):
    compare(Changing, engine, -1, data=with_numbers(range(20)), max_epochs=4)


@pytest.mark.narrow(11)
@ENGINES
def test_numbers_that_never_come_again_run_eagerly(engine):
    class Fresh(IterableDataset):
        def __init__(self):
            self.numbers = iter(range(1000))

        def __iter__(self):
            yield from ((*batch, next(self.numbers) / 100) for batch in loader(20))

    said = (
        "hold values that keep changing and are no tensors, each of which would need a program of its own: `batch[2]`"
    )
    compare(Changing, engine, -1, said, data=lambda: DataLoader(Fresh(), batch_size=None), max_epochs=5)


class Named(Net):
    """Its batches say which file they come from."""

    def training_step(self, batch, batch_idx):
        return super().training_step((batch["x"], batch["y"]), batch_idx)


class Files(IterableDataset):
    """The names of an epoch's files come again in the next one, or none does; nobody looks at `names`."""

    def __init__(self, come_again):
        self.come_again, self.epoch = come_again, 0

    def __iter__(self):
        self.epoch += not self.come_again
        for number, (x, y) in enumerate(loader(20)):
            names = [f"{self.epoch}/{number}/{row}.png" for row in range(len(x))]
            yield {"x": x, "y": y, "about": Example(x, y, names[0]), "names": names}


@pytest.mark.parametrize("come_again", [True, False])
def test_texts_that_change_with_each_batch_run_eagerly_and_that_is_said(come_again):
    def data():
        return DataLoader(Files(come_again), batch_size=None)

    said = "no tensors, each of which would need a program of its own: `batch['about'].name` (no line"
    _, sink = compare(Named, "inductor", 20, said, data=data, max_epochs=11)
    assert len([text for text in sink.warned if "runs eagerly" in text]) == 1
    assert sink.engine == "eager"


def test_numbers_that_come_again_in_a_sink_are_waited_for():
    """Each has a program of its own, in time."""
    batches = [(*batch, number % 9) for number, batch in enumerate(loader(60))]
    strategy = SinkStrategy(60, epoch="dataset", engine="inductor", fallback="error")
    plain, sink = both(Changing, lambda: DataLoader(batches, batch_size=None), strategy, max_epochs=1)
    assert_parity(plain, sink)
    assert sink.engine == "inductor"


def test_a_number_that_is_equal_to_nothing_is_the_same_where_it_is_the_same_object():
    batches = [{"x": x, "y": y, "about": math.nan, "name": str(number)} for number, (x, y) in enumerate(loader(40))]
    said = "a program of its own: `batch['name']` (no line"
    compare(Named, "inductor", 40, said, data=lambda: DataLoader(batches, batch_size=None), max_epochs=1)


@ENGINES
def test_a_number_that_alternates_is_not_frozen(engine):
    compare(Changing, engine, -1, data=with_numbers([1, 2] * 10))


class Transfers:
    """Overrides the three transfer hooks, each with an effect of its own."""

    scale = 2.0

    def on_before_batch_transfer(self, batch, dataloader_idx):
        assert self.trainer.training or self.trainer.sanity_checking
        return [batch[0] * self.scale, batch[1]]

    def transfer_batch_to_device(self, batch, device, dataloader_idx):
        return [batch[0].to(device) + 1.0, batch[1].to(device)]

    def on_after_batch_transfer(self, batch, dataloader_idx):
        self.calls = getattr(self, "calls", 0) + 1
        return [batch[0].tanh(), batch[1]]


class TransferringModule(Transfers, Net):
    pass


class Data(L.LightningDataModule):
    def train_dataloader(self):
        return loader(11)


class TransferringData(Transfers, Data):
    scale = 3.0


class HalfData(Data):
    """Overrides one of the hooks only."""

    def on_after_batch_transfer(self, batch, dataloader_idx):
        return [batch[0] * 3.0, batch[1]]


class HalfModule(Net):
    def on_before_batch_transfer(self, batch, dataloader_idx):
        return [batch[0] + 1.0, batch[1]]


@pytest.mark.narrow(11)
@ENGINES
@pytest.mark.parametrize(
    ("module", "data"),
    [
        (TransferringModule, Data),
        (Net, TransferringData),
        (TransferringModule, TransferringData),
        (HalfModule, HalfData),
    ],
)
def test_transfer_hooks(module, data, engine):
    compare(module, engine, data=data, sink_size=6)


class ReadsItsCalls(TransferringModule):
    """And needs them as plain numbers."""

    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) * [1.0, 0.5][self.calls % 2]


def test_what_keeps_changing_is_not_looked_at_for_ever(monkeypatch):
    """Plain Lightning's speed is what the warning promises."""
    glance, looks = Granted.glance, []

    def look(self, *arguments):
        looks.append(self)
        return glance(self, *arguments)

    monkeypatch.setattr(Granted, "glance", look)
    says = "attributes or the optimizer's options, keeps changing: `calls`"
    compare(ReadsItsCalls, "traced", data=lambda: loader(100), max_epochs=1, eager=says)
    assert 0 < len(looks) < 50


class Drawing(Net):
    def on_after_batch_transfer(self, batch, dataloader_idx):
        return [batch[0] + torch.randn_like(batch[0]), batch[1]]


class Doubles:
    """A strategy that moves batches in a way of its own."""

    def batch_to_device(self, batch, *arguments, **options):
        x, y = super().batch_to_device(batch, *arguments, **options)
        return x * 2, y


class DoublesInPlace(Doubles):
    """One whose batches are the loader's tensors, with other values."""

    def batch_to_device(self, batch, *arguments, **options):
        x, _ = batch
        x.mul_(2)
        return SingleDeviceStrategy.batch_to_device(self, batch, *arguments, **options)


@ENGINES
@pytest.mark.parametrize("moves", [Doubles, DoublesInPlace])
def test_a_strategys_own_transfer(moves, engine):
    plain_kind = type("Plain", (moves, SingleDeviceStrategy), {})
    sink_kind = type("Sink", (moves, SinkStrategy), {})
    # Nothing is verified, so that a batch that was passed over would show in the weights.
    options = {"sink_size": 5, "epoch": "dataset", "engine": engine, "verify": 0}
    plain, sink = (
        once(Net, loader, strategy, max_epochs=2) for strategy in (plain_kind(device="cpu"), sink_kind(**options))
    )
    assert_parity(plain, sink, exact=engine == "eager")


@ENGINES
def test_a_transfer_hook_that_draws(engine):
    compare(Drawing, engine, sink_size=6)


@pytest.mark.narrow(11)
@ENGINES
@pytest.mark.parametrize(
    ("precision", "tolerance"),
    [("bf16-true", 5e-2), ("64-true", 1e-8), ("bf16-mixed", 5e-2), ("32-true", 1e-4)],
)
@pytest.mark.parametrize("options", [{}, {"accumulate_grad_batches": 2, "gradient_clip_val": 0.1}], ids=str)
def test_precisions(precision, tolerance, options, engine):
    compare(Plain, engine, precision=precision, tolerance=tolerance, data=lambda: loader(11), **options)


@ENGINES
@pytest.mark.parametrize("sink_size", [6, -1])
def test_the_simple_profiler(sink_size, engine):
    compare(Net, engine, profiler="simple", sink_size=sink_size, data=lambda: loader(11))


@ENGINES
def test_detect_anomaly_reads_every_gradient_and_runs_eagerly(engine):
    compare(
        Net, engine, eager="`detect_anomaly=True` looks at the values", detect_anomaly=True, data=lambda: loader(11)
    )


class Stream(IterableDataset):
    def __iter__(self):
        yield from loader(11)


@pytest.mark.narrow(11)
@ENGINES
@pytest.mark.parametrize("sink_size", [4, 11, -1])
@pytest.mark.parametrize("options", [{}, {"accumulate_grad_batches": 3}, {"limit_train_batches": 7}], ids=str)
def test_data_without_a_length(sink_size, options, engine):
    compare(Net, engine, sink_size, data=lambda: DataLoader(Stream(), batch_size=None), **options)


class Gaps(IterableDataset):
    def __iter__(self):
        for index, batch in enumerate(loader(11)):
            yield None if index in (0, 3, 7) else batch


@ENGINES
def test_batches_of_none_are_passed_over(engine):
    compare(Net, engine, -1, data=lambda: DataLoader(Gaps(), batch_size=None))


@pytest.mark.parametrize("engine", ["eager", "traced"])
def test_a_batch_of_none_goes_through_the_hooks_too(engine):
    class Gaps:
        def __iter__(self):
            for index, batch in enumerate(loader()):
                yield None if index in (0, 3, 7) else batch

    class Filling(Net):
        def on_before_batch_transfer(self, batch, dataloader_idx):
            return (torch.arange(48.0).view(8, 6).sin(), torch.arange(8) % 3) if batch is None else batch

    plain, _ = compare(Filling, engine, -1, data=Gaps)
    assert plain.trainer.global_step == 34


# -- tensors that are not what lies in their memory --------------------------------------------------------------------

SAYS = "conjugated or negated when it is read"


def negated(x):
    """The same numbers, negative in memory."""
    lazy = torch.complex(x, -x).conj().imag
    assert lazy.is_neg()
    return lazy


def with_negated(numbers):
    """Batches of which these only say that they are negated."""
    given = [(negated(x) if number in numbers else x, y) for number, (x, y) in enumerate(loader(40, last=8))]
    return lambda: DataLoader(given, batch_size=None)


@pytest.mark.narrow(11)
@ENGINES
@pytest.mark.parametrize("numbers", [range(40), range(25, 40), range(3, 40, 6)], ids=["all", "late", "some"])
def test_a_negated_batch_is_not_read_as_its_memory(numbers, engine):
    compare(Plain, engine, -1, SAYS, data=with_negated(numbers), max_epochs=4)


class Conjugated(Plain):
    """Has a buffer that is conjugated, and keeps another number of each step that is."""

    def __init__(self):
        super().__init__()
        self.register_buffer("phase", torch.complex(torch.ones(6), torch.full((6,), 0.3)).conj())
        self.kept = torch.zeros(6)

    def training_step(self, batch, batch_idx):
        x, y = batch
        shifted = x * self.phase.imag + self.kept
        self.kept = torch.complex(x, x).mean(0).conj().imag
        return super().training_step((shifted, y), batch_idx)


@ENGINES
def test_tensors_of_the_modules_that_are_conjugated(engine):
    compare(Conjugated, engine, -1, SAYS, data=with_negated([]), max_epochs=2)


class Ragged(Plain):
    """Its rows are of different lengths."""

    def training_step(self, batch, batch_idx):
        rows, y = batch
        return super().training_step((torch.nested.to_padded_tensor(rows, 0.0, (len(y), 6)), y), batch_idx)


@ENGINES
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_nested_tensors_train_eagerly(engine):
    def collate(items):
        labels = [label for _, label in items]
        return torch.nested.nested_tensor([row[: 3 + int(label)] for row, label in items]), torch.stack(labels)

    def data():
        return DataLoader(loader(20, last=8).dataset, batch_size=8, collate_fn=collate)

    compare(Ragged, engine, -1, "batches are of too many kinds", data=data, max_epochs=3)


class Tells(Plain):
    def training_step(self, batch, batch_idx):
        if batch_idx % 6 == 5:
            print(batch_idx)
        return super().training_step(batch, batch_idx)


class AlwaysTells(Plain):
    def training_step(self, batch, batch_idx):
        print(batch_idx)
        return super().training_step(batch, batch_idx)


@pytest.mark.parametrize(("module", "some"), [(Tells, True), (AlwaysTells, False)])
def test_a_warning_says_whether_other_steps_are_compiled(module, some):
    _, found = compare(module, "traced", -1, "runs eagerly", data=lambda: loader(60), max_epochs=2)
    (text,) = [text for text in found.warned if "runs eagerly" in text]
    assert text.startswith("The training step runs eagerly in some steps (others are compiled), at plain") is some


class Compressed(Plain):
    """Its rows are sparse."""

    def training_step(self, batch, batch_idx):
        rows, y = batch
        return super().training_step((rows.to_dense(), y), batch_idx)


@ENGINES
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta:UserWarning")
def test_compressed_rows_train_eagerly(engine):
    given = [(x.to_sparse_csr(), y) for x, y in loader(20, last=8)]
    data = lambda: DataLoader(given, batch_size=None)  # noqa: E731
    compare(Compressed, engine, -1, "with layout torch.sparse_csr takes part", data=data, max_epochs=3)


class Signed(Plain):
    """The sign of a zero in the batch decides."""

    def training_step(self, batch, batch_idx):
        x, y, zero = batch
        return super().training_step((x * math.copysign(1.0, zero), y), batch_idx)


@ENGINES
def test_a_zero_is_no_negative_zero(engine):
    compare(Signed, engine, -1, data=with_numbers([0.0, -0.0] * 10), max_epochs=4)


class Masked(Net):
    """Its shapes depend on what is in the batch, whatever the batch's own is."""

    def training_step(self, batch, batch_idx):
        x, y = batch
        return super().training_step([x[x[:, 0] > 0], y[x[:, 0] > 0]], batch_idx)


def test_steps_that_no_shape_can_have_compiled_are_not_recorded_for_each(monkeypatch):
    recorded = []
    recorder = maker.Recorder
    monkeypatch.setattr(maker, "Recorder", lambda *given: recorded.append(1) or recorder(*given))
    torch.manual_seed(3)
    sizes = [8 + index % 20 for index in range(200)]
    batches = [(torch.randn(size, 6), torch.randint(3, (size,))) for size in sizes]
    plain, sink = both(
        Masked,
        lambda: DataLoader(batches, batch_size=None),
        SinkStrategy(50, epoch="dataset", engine="traced"),
        max_epochs=1,
    )
    assert_parity(plain, sink)
    assert len(recorded) < 30
    (warned,) = [text for text in sink.warned if "runs eagerly" in text]
    assert "boolean mask" in warned or "shape" in warned


class Counted(Net):
    """Weighs its loss by what nobody knows before a step, and by another number in each sink."""

    def on_train_batch_start(self, batch, batch_idx):
        self.sink = batch_idx // 20

    def training_step(self, batch, batch_idx):
        kinds = torch.unique((batch[0] * 4).round())
        return super().training_step(batch, batch_idx) * len(kinds) * [0.1, 0.2, 0.3][self.sink]


def test_a_change_has_steps_tried_again_once_where_the_reason_lasts(monkeypatch):
    recorded = []
    recorder = maker.Recorder
    monkeypatch.setattr(maker, "Recorder", lambda *given: recorded.append(1) or recorder(*given))
    strategy = SinkStrategy(20, epoch="dataset", engine="traced")
    plain, sink = both(Counted, lambda: loader(60), strategy, max_epochs=1)
    assert_parity(plain, sink)
    assert sink.engine == "eager"
    assert len(recorded) <= 3 + 1 + 3  # at first, behind the change, and behind 8, 16 and 32 steps


class MaskedAtFirst(Masked):
    def training_step(self, batch, batch_idx):
        return (
            super().training_step(batch, batch_idx)
            if self.current_epoch < 1
            else Net.training_step(self, batch, batch_idx)
        )


@pytest.mark.narrow(11)
@pytest.mark.parametrize("sizes", [[24], [24, 25, 26, 27]], ids=len)
def test_steps_that_could_not_be_compiled_at_first_are_tried_again(sizes):
    batches = [(torch.randn(size, 6), torch.randint(3, (size,))) for size in sizes * (40 // len(sizes))]
    data = lambda: DataLoader(batches, batch_size=None)  # noqa: E731
    plain, sink = both(MaskedAtFirst, data, SinkStrategy(20, epoch="dataset", engine="traced"), max_epochs=6)
    assert_parity(plain, sink)
    assert sink.engine == "traced"
