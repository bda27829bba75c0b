"""Data that draws random numbers: the same draws as in plain Lightning, by everybody, down to the generators' ends."""

import random
import threading
from contextlib import nullcontext

import lightning as L
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, TensorDataset

from lightning_sink import SinkDataModule, SinkStrategy
from parity import QUIET, ContinuedLoader, Net, assert_parity, train
from test_data_path import WAYS, fetching

LENGTH, SIZE = 70, 8

DRAWS = {
    "torch": lambda: torch.randn(6) * 0.1,
    "torch default_generator": lambda: torch.rand(6, generator=torch.default_generator) * 0.1,
    "torch in place": lambda: torch.empty(6).uniform_(0.0, 0.1),
    "torch randperm": lambda: torch.randperm(6) * 0.1,
    "torch bernoulli": lambda: torch.bernoulli(torch.full((6,), 0.5)) * 0.1,
    "torch dropout": lambda: torch.nn.functional.dropout(torch.ones(6)) * 0.1,
    "torch distribution": lambda: torch.distributions.Normal(0.0, 0.1).sample((6,)),
    "torch fork_rng": lambda: forked(),
    "numpy": lambda: float(np.random.rand()) * 0.1,
    "numpy normal": lambda: float(np.random.normal()) * 0.1,
    "numpy choice": lambda: float(np.random.choice([0.1, 0.2, 0.3])),
    "numpy shuffle": lambda: float(shuffled_by_numpy()[0]) * 0.1,
    "numpy randint": lambda: int(np.random.randint(5)) * 0.1,
    "numpy state": lambda: state_of_numpy(),
    "python": lambda: random.random() * 0.1,
    "python gauss": lambda: random.gauss(0.0, 0.1),
    "python choice": lambda: random.choice([0.1, 0.2, 0.3]),
    "python shuffle": lambda: shuffled_by_python()[0] * 0.1,
    "python sample": lambda: random.sample(range(9), 2)[0] * 0.1,
    "all": lambda: (torch.randn(6) + float(np.random.rand())) * random.random() * 0.1,
}


def forked():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        first = torch.randn(6) * 0.1
    return first + torch.randn(6) * 0.1


def shuffled_by_numpy():
    items = np.arange(5)
    np.random.shuffle(items)
    return items


def shuffled_by_python():
    items = list(range(5))
    random.shuffle(items)
    return items


def state_of_numpy():
    state = np.random.get_state()
    first = np.random.rand()
    np.random.set_state(state)
    return float(first - np.random.rand())


def always(index, fetched):
    return True


WHEN = {
    "always": always,
    "some indices": lambda index, fetched: index % 17 == 3,
    "after the first traversal": lambda index, fetched: fetched > LENGTH,
    "until the second traversal": lambda index, fetched: fetched < LENGTH // 2,
}


class Drawing(Dataset):
    """Adds a draw to some samples."""

    def __init__(self, draw=lambda: 0.0, when=always):
        generator = torch.Generator().manual_seed(1)
        self.x = torch.randn(LENGTH, 6, generator=generator)
        self.y = torch.randint(0, 3, (LENGTH,), generator=generator)
        self.draw, self.when, self.fetched = draw, when, 0

    def __len__(self):
        return LENGTH

    def __getitem__(self, index):
        self.fetched += 1
        x = self.x[index]
        return (x + self.draw() if self.when(index, self.fetched) else x), self.y[index]


class Seeding(Drawing):
    """Seeds for each sample, as many recipes do."""

    def __init__(self, seed):
        super().__init__()
        self.seed = seed

    def __getitem__(self, index):
        self.seed(index)
        x, y = super().__getitem__(index)
        return x + torch.randn(6) * 0.1 + float(np.random.rand()) + random.random(), y


class Stream(IterableDataset):
    def __init__(self, **options):
        self.inner = Drawing(**options)

    def __iter__(self):
        for index in range(LENGTH):
            yield self.inner[index]


class DrawingSampler(Sampler):
    def __init__(self, draw):
        self.draw = draw

    def __len__(self):
        return LENGTH

    def __iter__(self):
        for index in range(LENGTH):
            self.draw()
            yield (index + int(random.random() * 3)) % LENGTH


class StepDraws(Net):
    """A step that draws, beside its dropout. It logs nothing: what it was given is in the weights, to the bit."""

    draw = staticmethod(lambda: 0.0)

    def training_step(self, batch, batch_idx):
        x, y = batch
        return torch.nn.functional.cross_entropy(self.net(x + self.draw()), y)


class NumpyStep(StepDraws):
    draw = staticmethod(lambda: float(np.random.rand()))


class PythonStep(StepDraws):
    draw = staticmethod(random.random)


class BothStep(StepDraws):
    draw = staticmethod(lambda: random.random() + float(np.random.normal()))


def seed_all(seed=7):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def ends():
    numpy = np.random.get_state()
    return torch.get_rng_state().tolist(), random.getstate(), numpy[0], numpy[1].tolist(), numpy[2:]


def trained(make, data, strategy, **options):
    seed_all()
    module = make()
    return train(module, data, strategy, **{"max_epochs": 3, **options}), ends()


SINKS = [(7, "sink"), (4, "dataset"), (-1, "dataset")]


def assert_same(data, make=StepDraws, sinks=SINKS, ways=WAYS, **options):
    """Bit for bit plain Lightning's training and generators, twice."""
    plain_of_an_epoch = trained(make, data(), "auto", **options)
    for size, epoch in sinks:
        endless = epoch == "sink"
        plain, end = trained(make, ContinuedLoader(data(), size), "auto", **options) if endless else plain_of_an_epoch
        for way in ways:
            for _ in range(2 if way == "ahead" else 1):
                strategy = SinkStrategy(size, engine="eager", **({} if size == -1 else {"epoch": epoch}))
                with fetching(way):
                    sink, sink_end = trained(make, data(), strategy, **options)
                assert_parity(plain, sink, exact=True)
                assert sink_end == end


def mapped(**options):
    return lambda: DataLoader(Drawing(**options), batch_size=SIZE, shuffle=True)


AT_ANY_TIME = ["torch", "numpy", "python", "all"]


@pytest.mark.narrow(13)
@pytest.mark.parametrize("draw", [draw for draw in DRAWS if draw not in AT_ANY_TIME])
def test_draws_of_every_kind(draw):
    assert_same(mapped(draw=DRAWS[draw], when=WHEN["some indices"]), sinks=SINKS[:2], ways=WAYS[:1] + WAYS[2:])


@pytest.mark.narrow(13)
@pytest.mark.parametrize("draw", AT_ANY_TIME)
@pytest.mark.parametrize("when", WHEN)
def test_draws_at_any_time(draw, when):
    assert_same(mapped(draw=DRAWS[draw], when=WHEN[when]))


@pytest.mark.narrow(11)
@pytest.mark.parametrize("draw", ["torch", "numpy", "python"])
@pytest.mark.parametrize("step", [NumpyStep, PythonStep, BothStep])
def test_draws_beside_a_step_that_draws(draw, step):
    assert_same(mapped(draw=DRAWS[draw], when=WHEN["some indices"]), make=step, sinks=SINKS[:2])


@pytest.mark.parametrize("step", [NumpyStep, PythonStep, BothStep])
def test_a_step_that_draws_beside_data_that_does_not(step):
    assert_same(mapped(), make=step, sinks=SINKS[1:])


@pytest.mark.parametrize("draw", ["torch", "numpy", "python"])
def test_draws_in_collate_fn(draw):
    def collate(samples):
        x, y = torch.utils.data.default_collate(samples)
        return x + DRAWS[draw](), y

    assert_same(lambda: DataLoader(Drawing(), batch_size=SIZE, shuffle=True, collate_fn=collate), sinks=SINKS[:2])


@pytest.mark.parametrize("draw", ["torch", "numpy", "python"])
def test_draws_in_the_sampler(draw):
    def data():
        return DataLoader(Drawing(), batch_size=SIZE, sampler=DrawingSampler(DRAWS[draw]))

    assert_same(data, sinks=SINKS[:2])


@pytest.mark.narrow(11)
@pytest.mark.parametrize("draw", ["torch", "numpy", "python"])
@pytest.mark.parametrize("when", ["always", "some indices"])
def test_draws_of_a_stream(draw, when):
    assert_same(lambda: DataLoader(Stream(draw=DRAWS[draw], when=WHEN[when]), batch_size=SIZE), sinks=SINKS[:2])


SEEDS = {
    "torch": torch.manual_seed,
    "torch random": torch.random.manual_seed,
    "default_generator": lambda index: torch.default_generator.manual_seed(index),
    "torch state": lambda index: torch.set_rng_state(torch.Generator().manual_seed(index).get_state()),
    "numpy": np.random.seed,
    "python": random.seed,
    "all": seed_all,
}


@pytest.mark.narrow(11)
@pytest.mark.parametrize("seed", SEEDS)
def test_data_that_seeds_for_each_sample(seed):
    def data():
        return DataLoader(Seeding(SEEDS[seed]), batch_size=SIZE, shuffle=True)

    assert_same(data, make=BothStep, sinks=SINKS[:2], ways=["ahead", "changing"])


@pytest.mark.parametrize("seed", ["torch", "numpy", "python"])
def test_data_that_seeds_and_draws_nothing(seed):
    class Only(Drawing):
        def __getitem__(self, index):
            if index % 5 == 0:
                SEEDS[seed](index)
            return super().__getitem__(index)

    assert_same(
        lambda: DataLoader(Only(), batch_size=SIZE, shuffle=True),
        make=BothStep,
        sinks=SINKS[:2],
        ways=["ahead", "changing"],
    )


class Hooked(StepDraws):
    """Augments in a transfer hook."""

    def on_after_batch_transfer(self, batch, dataloader_idx):
        x, y = batch
        return x + torch.randn_like(x) * 0.1 + float(np.random.rand()) + random.random(), y


@pytest.mark.filterwarnings("ignore:You have overridden")
@pytest.mark.parametrize("ahead", [False, True])
def test_draws_of_a_transfer_hook(ahead):
    def data():
        return DataLoader(Drawing(), batch_size=SIZE, shuffle=True)

    plain, end = trained(Hooked, data(), "auto")
    for way in WAYS:
        seed_all()
        module, strategy = Hooked(), SinkStrategy(4, epoch="dataset", engine="eager")
        from_loader = SinkDataModule.from_loaders(data(), transfer_ahead=ahead)
        with fetching(way):
            sink = fit_datamodule(module, from_loader, strategy)
        assert ends() == end
        for name, tensor in plain.module.state_dict().items():
            assert torch.equal(tensor, sink.state_dict()[name]), (way, name)


def fit_datamodule(module, datamodule, strategy):
    seed_all(0)  # as `train` does
    L.Trainer(**QUIET, logger=False, strategy=strategy, max_epochs=3).fit(module, datamodule=datamodule)
    return module


def test_workers_draw_for_themselves():
    def data():
        return DataLoader(Drawing(DRAWS["all"]), batch_size=SIZE, shuffle=True, num_workers=1)

    assert_same(data, sinks=SINKS[1:2], ways=["ahead", "changing"])


def test_gathered_data_is_drawn_for_alike():
    x = torch.randn(LENGTH, 6, generator=torch.Generator().manual_seed(1))

    def data():
        return DataLoader(TensorDataset(x, torch.arange(LENGTH) % 3), batch_size=SIZE, shuffle=True)

    assert_same(data, make=BothStep)


def test_a_generator_of_numpy_that_the_user_made_stays_its_own():
    class Own(Drawing):
        def __init__(self):
            super().__init__()
            self.generator = np.random.default_rng(3)

        def __getitem__(self, index):
            x, y = super().__getitem__(index)
            return x + float(self.generator.normal()), y

    assert_same(lambda: DataLoader(Own(), batch_size=SIZE, shuffle=True), make=BothStep, sinks=SINKS[:2])


def test_the_global_generators_are_the_same_objects_after_a_fit():
    before = np.random.get_bit_generator(), random.random.__self__, torch.default_generator
    with fetching("ahead"):
        train(Net(), mapped(draw=DRAWS["all"])(), SinkStrategy(4, epoch="dataset", engine="eager"), max_epochs=2)
    after = np.random.get_bit_generator(), random.random.__self__, torch.default_generator
    assert all(a is b for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize("draw", ["torch", "numpy", "python"])
def test_the_comparison_can_fail(draw):
    """With a draw more than plain Lightning's, or other data, nothing is equal."""
    plain, end = trained(Net, mapped(draw=DRAWS[draw])(), "auto")
    strategy = SinkStrategy(4, epoch="dataset", engine="eager")
    other, other_end = trained(Net, mapped(draw=DRAWS[draw], when=lambda index, fetched: index != 3)(), strategy)
    assert end != other_end
    with pytest.raises(AssertionError):
        assert_parity(plain, other, exact=True)


@pytest.mark.parametrize("draw", ["torch", "numpy", "python"])
def test_draws_out_of_turn_would_show(draw, monkeypatch):
    """Without the watch over draws a fetch beside a step takes the step's numbers."""
    ahead = threading.Event()

    class Waiting(BothStep):
        def training_step(self, batch, batch_idx):
            if batch_idx > 0:
                ahead.wait(10)  # until the queue, which nothing holds back, has fetched beside this step
            return super().training_step(batch, batch_idx)

    class Watching(Drawing):
        def __getitem__(self, index):
            found = super().__getitem__(index)
            if self.fetched > 2 * SIZE:
                ahead.set()
            return found

    plain, _ = trained(BothStep, mapped(draw=DRAWS[draw])(), "auto")
    monkeypatch.setattr("lightning_sink.data.producer.watched", lambda wait: nullcontext())
    with fetching("ahead"):
        data = DataLoader(Watching(DRAWS[draw]), batch_size=SIZE, shuffle=True)
        other, _ = trained(Waiting, data, SinkStrategy(-1, engine="eager"))
    assert ahead.is_set()
    with pytest.raises(AssertionError):
        assert_parity(plain, other, exact=True)


@pytest.mark.narrow(11)
@pytest.mark.parametrize("draw", [None, "torch", "numpy", "python"])
def test_traced_steps_meet_the_same_batches(draw):
    data = mapped(draw=DRAWS[draw] if draw else (lambda: 0.0), when=WHEN["some indices"])
    plain, end = trained(Net, data(), "auto")
    for way in WAYS:
        with fetching(way):
            sink, sink_end = trained(Net, data(), SinkStrategy(4, epoch="dataset", engine="traced"))
        assert_parity(plain, sink)
        assert sink_end == end
        assert sink.engine == "traced"
