"""Checkpoints are Lightning's own: saved at the same steps with the same content, and resumed in both directions."""

from collections import OrderedDict
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint, OnExceptionCheckpoint
from torch.utils.data import IterableDataset
from torchdata.stateful_dataloader import StatefulDataLoader

from lightning_sink import SinkStrategy
from parity import Net, assert_parity, assert_tensors, both, loader, train

OURS = "lightning_sink"

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata 0.11 calls it


def load(path):
    return torch.load(path, weights_only=False)


def assert_same_content(plain, sink, exact=True):
    """Field by field; the callbacks' own state holds paths and times."""
    assert plain.keys() == sink.keys() - {OURS}
    assert plain["loops"] == sink["loops"]
    for key in ("epoch", "global_step", "lr_schedulers", "pytorch-lightning_version"):
        assert plain[key] == sink[key], key
    states = [plain["optimizer_states"][0]["state"], sink["optimizer_states"][0]["state"]]
    assert states[0].keys() == states[1].keys()
    pairs = [(a, sink["state_dict"][name]) for name, a in plain["state_dict"].items()]
    pairs += [(a, states[1][index][name]) for index, state in states[0].items() for name, a in state.items()]
    for a, b in pairs:
        if exact or not a.is_floating_point():
            assert torch.equal(a, b)
        else:
            assert torch.allclose(a, b, rtol=1e-4, atol=1e-6)
    assert plain["optimizer_states"][0]["param_groups"] == sink["optimizer_states"][0]["param_groups"]


def saved(strategy, folder, make=lambda: Net("adam", "onecycle"), data=None, seed=7, callback=None, **options):
    torch.manual_seed(seed)
    callback = callback or ModelCheckpoint(dirpath=folder, filename="{step}", save_top_k=-1, every_n_train_steps=5)
    options = {"max_epochs": 3, "enable_checkpointing": True, **options}
    run = train(make(), loader(shuffle=True) if data is None else data, strategy, callbacks=[callback], **options)
    return run, sorted(path.name for path in Path(folder).iterdir())


@pytest.mark.parametrize("options", [{"every_n_epochs": 1}, {"monitor": "val_loss", "save_top_k": 2}], ids=str)
def test_checkpoints_at_epoch_ends_and_after_validation(options):
    files = []
    for folder, strategy in (("plain", "auto"), ("sink", SinkStrategy(4, epoch="dataset", engine="eager"))):
        callback = ModelCheckpoint(dirpath=folder, filename="{step}", **options)
        _, names = saved(strategy, folder, callback=callback, validation=loader(3), val_check_interval=6)
        files.append(names)
    assert files[0] == files[1]
    for name in files[0]:
        assert_same_content(load(f"plain/{name}"), load(f"sink/{name}"))


WAYS = [("auto", "sink"), ("sink", "auto"), ("sink", "sink")]


def strategy_of(name, engine, size=6):
    return "auto" if name == "auto" else SinkStrategy(size, epoch="dataset", engine=engine)


class NoDropout(Net):
    """Draws nothing while it trains, so a resumed training needs no generator's state."""

    def __init__(self):
        super().__init__("adam", "onecycle")
        self.net[3] = torch.nn.Identity()


def assert_same_end(whole, resumed, exact, without=()):
    assert whole.trainer.global_step == resumed.trainer.global_step
    assert whole.trainer.current_epoch == resumed.trainer.current_epoch
    a, b = whole.module.state_dict(), resumed.module.state_dict()
    for name in a:
        if exact:
            assert torch.equal(a[name], b[name]), name
        else:
            assert torch.allclose(a[name], b[name], rtol=1e-4, atol=1e-6), name
    a, b = whole.trainer.fit_loop.state_dict(), resumed.trainer.fit_loop.state_dict()
    for state in (a, b):
        state["state_dict"].pop("combined_loader", None)  # the loader's own affair
    assert {name: a[name] for name in a if name not in without} == {name: b[name] for name in b if name not in without}


@pytest.mark.parametrize(("first", "second"), [("auto", "sink"), ("sink", "auto")])
def test_between_the_two_an_epoch_is_begun_again_as_in_plain_lightning(first, second):
    saved("auto", "whole", NoDropout, loader())
    saved(strategy_of(first, "eager"), "first", NoDropout, loader())
    reference = train(NoDropout(), loader(), checkpoint="whole/step=25.ckpt", max_epochs=3)
    strategy = strategy_of(second, "eager", 4)
    resumed = train(NoDropout(), loader(), strategy, checkpoint="first/step=25.ckpt", max_epochs=3)
    assert_same_end(reference, resumed, exact=True)
    assert [text for text in reference.warned if "not resumable" in text]
    assert [text for text in resumed.warned if "not resumable" in text]


@pytest.mark.parametrize("options", [{}, {"shuffle": True, "generator": 3}], ids=["in order", "shuffled"])
def test_resuming_in_the_middle_of_an_epoch_goes_on_with_the_very_next_batch(options):
    def data():
        seed = {key: torch.Generator().manual_seed(value) for key, value in options.items() if key == "generator"}
        return loader(**{**options, **seed})

    whole, _ = saved("auto", "whole", NoDropout, data())
    saved(strategy_of("sink", "eager"), "first", NoDropout, data())
    resumed = train(NoDropout(), data(), strategy_of("sink", "eager", 4), checkpoint="first/step=25.ckpt", max_epochs=3)
    assert_same_end(whole, resumed, exact=True)
    assert not [text for text in resumed.warned if "resum" in text or "goes on" in text]


class Unsized:
    """Data that gives fewer batches than a limit, or its own length, says."""

    def __init__(self):
        self.batches = list(loader(5))

    def __iter__(self):
        return iter(self.batches)


class Overstated(Unsized):
    def __len__(self):
        return 9


class LeavesOut(NoDropout):
    def on_train_batch_start(self, batch, batch_idx):
        return -1 if batch_idx == 7 else None


CUT = {
    "unsized": (NoDropout, Unsized, {"limit_train_batches": 11}),
    "overstated": (NoDropout, Overstated, {}),
    "a hook": (LeavesOut, loader, {}),
}


@pytest.mark.parametrize("size", [4, -1])
@pytest.mark.parametrize("cut", CUT)
def test_behind_an_epoch_that_was_cut_short_the_next_one_is_a_whole_one(cut, size):
    make, data, options = CUT[cut]
    runs = []
    for name in ("auto", "sink"):
        callback = ModelCheckpoint(dirpath=name, filename="{epoch}", save_top_k=-1, save_on_train_epoch_end=True)
        strategies = strategy_of(name, "eager", size), strategy_of(name, "eager", size)
        saved(strategies[0], name, make, data(), callback=callback, max_epochs=2, **options)
        runs.append(train(make(), data(), strategies[1], checkpoint=f"{name}/epoch=1.ckpt", max_epochs=4, **options))
    steps = runs[0].trainer.global_step
    assert_same_end(*runs, exact=True)
    assert steps == (28 if cut == "a hook" else 20)


class Stops(NoDropout):
    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.trainer.should_stop = self.global_step == 8


ENDED = {
    "max_steps": (NoDropout, lambda: loader(5), {"max_steps": 8}),
    "should_stop": (Stops, lambda: loader(5), {}),
    "stateful": (NoDropout, lambda: StatefulDataLoader(loader(5).dataset, batch_size=8), {"max_steps": 8}),
    "at the end of unsized data": (NoDropout, Unsized, {"max_steps": 10, "limit_train_batches": 7}),
}


@pytest.mark.parametrize("ended", ENDED)
def test_behind_an_epoch_that_lightning_counts_as_over_in_its_middle_the_next_one_is_a_whole_one(ended):
    make, data, options = ENDED[ended]
    runs = []
    for name in ("auto", "sink"):
        callback = ModelCheckpoint(dirpath=name, filename="last", save_on_train_epoch_end=True)
        saved(strategy_of(name, "eager"), name, make, data(), callback=callback, **options)
        more = {**options, "max_steps": -1, "max_epochs": 4, "checkpoint": f"{name}/last.ckpt"}
        runs.append(train(make(), data(), strategy_of(name, "eager"), **more))
    assert runs[0].trainer.global_step > 15
    assert_same_end(*runs, exact=True)


class Saves(L.Callback):
    def on_train_start(self, trainer, pl_module):
        trainer.save_checkpoint("again.ckpt")


class Fails(NoDropout):
    def __init__(self, epoch, index):
        super().__init__()
        self.at = epoch, index

    def training_step(self, batch, batch_idx):
        if (self.current_epoch, batch_idx) == self.at:
            raise OSError("the disk is gone")
        return super().training_step(batch, batch_idx)


class SavesAtStart(L.Callback):
    def on_train_epoch_start(self, trainer, pl_module):
        if trainer.current_epoch == 1:
            trainer.save_checkpoint("again.ckpt")


BEGINS = {
    "fails": (lambda: Fails(1, 0), lambda: loader(5), {}),
    "fails behind a short one": (lambda: Fails(1, 0), Unsized, {"limit_train_batches": 11}),
    "saves": (NoDropout, lambda: loader(5), {}),
    "saves behind a short one": (NoDropout, Unsized, {"limit_train_batches": 11}),
}


@pytest.mark.parametrize("begins", BEGINS)
def test_what_is_saved_where_an_epoch_begins_is_followed_by_that_epoch(begins):
    make, data, options = BEGINS[begins]
    runs = []
    for name in ("auto", "sink"):
        saves = OnExceptionCheckpoint(".", "again") if "fails" in begins else SavesAtStart()
        torch.manual_seed(7)
        with pytest.raises(OSError, match="the disk is gone") if "fails" in begins else nullcontext():
            more = {"callbacks": [saves], "enable_checkpointing": True, **options}
            train(make(), data(), strategy_of(name, "eager", 4), max_epochs=2, **more)
        more = {"checkpoint": "again.ckpt", "max_epochs": 3, **options}
        runs.append(train(NoDropout(), data(), strategy_of(name, "eager", 4), **more))
        Path("again.ckpt").unlink()
    assert_same_end(*runs, exact=True)


@pytest.mark.parametrize("fails", [False, True])
def test_what_is_saved_before_a_resumed_training_has_trained_a_batch_is_where_it_was(fails):
    strategy = partial(strategy_of, "sink", "eager", 4)
    whole, _ = saved("auto", "whole", NoDropout, loader())
    saved(strategy(), "first", NoDropout, loader())
    more = {"max_epochs": 3, "checkpoint": "first/step=25.ckpt", "enable_checkpointing": True}
    if fails:
        module = Fails(1, 8)
        with pytest.raises(OSError, match="the disk is gone"):
            train(module, loader(), strategy(), callbacks=[OnExceptionCheckpoint(".", "again")], **more)
    else:
        train(NoDropout(), loader(), strategy(), callbacks=[Saves()], **more)
    resumed = train(NoDropout(), loader(), strategy(), checkpoint="again.ckpt", max_epochs=3)
    assert whole.trainer.global_step == resumed.trainer.global_step
    assert_tensors(whole.tensors, resumed.tensors, exact=True)


class Counts(IterableDataset):
    def __iter__(self):
        yield from loader(5).dataset


@pytest.mark.parametrize("limit", [None, 7])
def test_a_checkpoint_at_the_last_step_of_stateful_data_without_a_length(limit):
    runs = []
    for name in ("auto", "sink"):
        data = lambda: StatefulDataLoader(Counts(), batch_size=8)  # noqa: E731
        saved(strategy_of(name, "eager"), name, NoDropout, data(), max_epochs=1, limit_train_batches=limit)
        more = {"checkpoint": f"{name}/step=5.ckpt", "limit_train_batches": limit}
        runs.append(train(NoDropout(), data(), strategy_of(name, "eager"), max_epochs=3, **more))
    assert_same_end(*runs, exact=True)


def test_control_plain_lightning_begins_the_epoch_again():
    whole, _ = saved("auto", "whole", NoDropout, loader())
    resumed = train(NoDropout(), loader(), checkpoint="whole/step=25.ckpt", max_epochs=3)
    with pytest.raises(AssertionError):
        assert_same_end(whole, resumed, exact=True)


@pytest.mark.parametrize("step", [10, 20])
def test_plain_lightning_takes_weights_optimizer_and_counters_of_an_endless_traversal(step):
    callback = ModelCheckpoint(dirpath="first", filename="{step}", save_top_k=-1, every_n_train_steps=step)
    saved(SinkStrategy(10, engine="eager"), "first", NoDropout, loader(), callback=callback, max_epochs=5)
    resumed = train(NoDropout(), loader(), checkpoint=f"first/step={step}.ckpt", max_steps=step)
    assert resumed.trainer.global_step == step
    for name, tensor in load(f"first/step={step}.ckpt")["state_dict"].items():
        assert torch.equal(tensor, resumed.module.state_dict()[name])


def test_a_checkpoint_at_an_epochs_end_has_nothing_of_ours():
    callback = ModelCheckpoint(dirpath="sink", filename="{step}", save_top_k=-1, every_n_epochs=1)
    saved(SinkStrategy(4, epoch="dataset", engine="eager"), "sink", callback=callback)
    assert OURS not in load("sink/step=17.ckpt")


def test_what_is_ours_in_a_checkpoint_is_strings_and_numbers():
    saved(SinkStrategy(4, epoch="dataset", engine="eager"), "sink")
    torch.save(load("sink/step=10.ckpt")[OURS], "ours.pt")
    ours = torch.load("ours.pt", weights_only=True)
    assert (ours["traversal"], ours["position"]) == (0, 10)


def test_saving_by_hand_and_only_weights():
    run, _ = saved(SinkStrategy(4, engine="traced"), "sink")
    run.trainer.save_checkpoint("all.ckpt")
    run.trainer.save_checkpoint("weights.ckpt", weights_only=True)
    assert torch.equal(load("weights.ckpt")["state_dict"]["net.0.weight"], run.module.net[0].weight)
    assert load("all.ckpt")["global_step"] == run.trainer.global_step
    again = Net.load_from_checkpoint("weights.ckpt", optimizer="adam")
    assert torch.equal(again.net[0].weight, run.module.net[0].weight)


class SavesInItsStep(NoDropout):
    """Saves in a hook that belongs to the step, a few times while it is recorded."""

    def __init__(self, options):
        super().__init__()
        self.options = options

    def on_train_batch_end(self, outputs, batch, batch_idx):
        if self.global_step < 12:
            self.trainer.save_checkpoint(f"saved-{type(self.trainer.strategy).__name__}/{self.global_step}.ckpt")

    def on_save_checkpoint(self, checkpoint):
        rate = self.optimizers().param_groups[0]["lr"]
        checkpoint["mine"] = OrderedDict(rate=rate, of=[(2 * rate, self.global_step)])

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01, **self.options)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.05, total_steps=60)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


@pytest.mark.parametrize("options", [{}, {"foreach": True}, {"fused": True}], ids=str)
def test_checkpoints_that_a_step_saves(options):
    for strategy in ("auto", SinkStrategy(-1, epoch="dataset", engine="traced")):
        torch.manual_seed(7)
        train(SavesInItsStep(options), loader(), strategy, max_epochs=1)
    for step in range(1, 12):
        plain, sink = (
            torch.load(f"saved-{name}/{step}.ckpt", weights_only=True)
            for name in ("SingleDeviceStrategy", "SinkStrategy")
        )
        assert plain["mine"] == sink["mine"]
        assert_same_content(plain, sink, exact=False)


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.filterwarnings("ignore:Checkpoint directory")
def test_what_is_saved_behind_a_resume(accumulate):
    options = {"accumulate_grad_batches": accumulate, "limit_train_batches": 12}
    saved("auto", "first", NoDropout, max_epochs=2, callback=saves("first"), **options)
    files = []
    for folder, strategy in (("plain", "auto"), ("sink", SinkStrategy(-1, epoch="dataset", engine="eager"))):
        path = f"first/{24 // accumulate}.ckpt"
        _, names = saved(strategy, folder, NoDropout, callback=saves(folder), checkpoint=path, max_epochs=3, **options)
        files.append(names)
    assert files[0] == files[1]
    for name in files[0]:
        assert_same_content(load(f"plain/{name}"), load(f"sink/{name}"))


def saves(folder):
    return ModelCheckpoint(folder, "{step}", save_top_k=-1, every_n_train_steps=4, auto_insert_metric_name=False)


def test_two_fits_with_a_checkpoint_between_them():
    plain, sink = both(Net, loader, SinkStrategy(5, epoch="dataset", engine="eager"), max_epochs=2)
    assert_parity(plain, sink, exact=True)
    for run in (plain, sink):
        run.trainer.fit_loop.max_epochs = 4
        torch.manual_seed(1)
        run.trainer.fit(run.module, loader())
        assert run.trainer.global_step == 68
    assert_parity(plain, sink, exact=True)
