"""Checkpoints at steps that no sink ends at by itself, and trainings that go on from them."""

from pathlib import Path

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint, OnExceptionCheckpoint
from torch import nn
from torchdata.stateful_dataloader import StatefulDataLoader

from lightning_sink import SinkStrategy
from parity import ContinuedLoader, Net, assert_parity, loader, train

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata 0.11 calls it

ENGINES = ["eager", "traced"]
WAYS = [("plain", "sink"), ("sink", "plain"), ("sink", "sink")]
EPOCHS = 3


class Steady(Net):
    """Draws nothing in a step: Lightning's checkpoints hold no generator, so only such a training can be resumed."""

    def __init__(self, optimizer="adam", schedule="onecycle"):
        super().__init__(optimizer, schedule)
        self.net[3] = nn.Identity()


class Batches(L.Callback):
    """Keeps what the module's transfer saw: the first number of each batch's first row."""

    def __init__(self):
        self.seen = []

    def setup(self, trainer, pl_module, stage):
        def note(batch, dataloader_idx, original=pl_module.on_before_batch_transfer):
            if trainer.training:
                self.seen.append(float(batch[0][0, 0]))
            return original(batch, dataloader_idx)

        pl_module.on_before_batch_transfer = note


def strategy(way, engine="eager", size=7, **options):
    return "auto" if way == "plain" else SinkStrategy(size, engine=engine, **{"epoch": "dataset", **options})


def stateful(seed=4):
    return StatefulDataLoader(
        loader().dataset, batch_size=8, shuffle=True, generator=torch.Generator().manual_seed(seed)
    )


def read(path):
    return torch.load(path, weights_only=False)


def fit(folder, data, chosen="auto", make=Steady, seed=7, every=3, callbacks=(), **options):
    """Trains with a checkpoint every few steps; returns the run and the names of the files."""
    torch.manual_seed(seed)
    saves = ModelCheckpoint(dirpath=folder, filename="{epoch}-{step}", save_top_k=-1, every_n_train_steps=every)
    options = {"max_epochs": EPOCHS, "enable_checkpointing": True, **options}
    run = train(make(), data, chosen, seed=seed, callbacks=[saves, *callbacks], **options)
    return run, sorted(path.name for path in Path(folder).iterdir())


def flat(value, path=""):
    """Every leaf of nested dicts, lists and tuples by its path."""
    if isinstance(value, dict):
        return {key: leaf for name, item in value.items() for key, leaf in flat(item, f"{path}/{name}").items()}
    if isinstance(value, list | tuple):
        return {key: leaf for name, item in enumerate(value) for key, leaf in flat(item, f"{path}/{name}").items()}
    return {path: value}


def assert_same_leaves(plain, sink, exact):
    plain, sink = flat(plain), flat(sink)
    assert plain.keys() == sink.keys()
    for path, leaf in plain.items():
        other = sink[path]
        if not isinstance(leaf, torch.Tensor):
            assert leaf == other, path
        elif exact or not leaf.is_floating_point():
            assert torch.equal(leaf, other), path
        else:
            assert (leaf - other).abs().max() <= 1e-4 * leaf.abs().max() + 1e-9, path


def content(path, folder):
    """A file's content without what is ours alone, with the folder's name out of the callbacks' state."""
    saved = read(path)
    saved.pop("lightning_sink", None)
    state = saved.pop("callbacks")
    for callback in state.values():
        for name in [name for name in callback if "score" in name]:
            callback.pop(name)
    text = {key: str(leaf).replace(str(Path(folder).resolve()), "") for key, leaf in flat(state).items()}
    return {**saved, "callbacks": text}


@pytest.mark.narrow(11)
@pytest.mark.parametrize(
    ("accumulate", "size", "engine"),
    [(1, 7, "eager"), (1, -1, "eager"), (2, 7, "eager"), (2, -1, "eager"), (1, 7, "traced"), (2, -1, "traced")],
)
def test_every_leaf_of_every_checkpoint_is_plain_lightnings(accumulate, size, engine):
    def make():
        return Net("adam", "onecycle")

    options = {"make": make, "accumulate_grad_batches": accumulate}
    plain, expected = fit("plain", loader(shuffle=True), **options)
    sink, found = fit("sink", loader(shuffle=True), strategy("sink", engine, size), **options)
    assert sink.engine == engine
    assert expected == found
    assert len(found) == sink.trainer.global_step // 3
    for name in found:
        assert_same_leaves(content(f"plain/{name}", "plain"), content(f"sink/{name}", "sink"), engine == "eager")
    assert_parity(plain, sink, exact=engine == "eager")


def test_control_another_seed_or_another_step_is_seen():
    fit("plain", loader())
    fit("sink", loader(), strategy("sink"), seed=8)
    with pytest.raises(AssertionError, match="state_dict"):
        assert_same_leaves(
            content("plain/epoch=0-step=3.ckpt", "plain"), content("sink/epoch=0-step=3.ckpt", "sink"), exact=True
        )
    first, second = (read(f"plain/epoch=0-step={step}.ckpt")["loops"] for step in (3, 6))
    with pytest.raises(AssertionError, match="_batches_that_stepped"):
        assert_same_leaves(first, second, exact=True)


def assert_goes_on(whole, resumed, seen, exact):
    """The resumed training took the rest of the batches and ended where the uninterrupted one did."""
    assert seen == whole.batches.seen[-len(seen) :]
    assert whole.trainer.global_step == resumed.trainer.global_step
    assert whole.trainer.current_epoch == resumed.trainer.current_epoch
    assert whole.trainer.fit_loop.epoch_loop.total_batch_idx == resumed.trainer.fit_loop.epoch_loop.total_batch_idx
    assert_same_leaves(whole.module.state_dict(), resumed.module.state_dict(), exact)
    states = [run.trainer.optimizers[0].state_dict() for run in (whole, resumed)]
    assert_same_leaves(*states, exact)
    configs = [run.trainer.lr_scheduler_configs[0].scheduler.state_dict() for run in (whole, resumed)]
    assert configs[0] == configs[1]


def uninterrupted(data, chosen="auto", folder="whole", **options):
    batches = Batches()
    run, _ = fit(folder, data, chosen, callbacks=[batches], **options)
    run.batches = batches
    return run


def go_on(data, chosen, checkpoint, **options):
    batches = Batches()
    torch.manual_seed(99)
    run = train(
        Steady(), data, chosen, seed=99, callbacks=[batches], checkpoint=checkpoint, **{"max_epochs": EPOCHS, **options}
    )
    return run, batches.seen


@pytest.mark.narrow(11)
@pytest.mark.parametrize(("first", "second"), WAYS)
@pytest.mark.parametrize(("accumulate", "engine"), [(1, "eager"), (2, "traced")])
def test_resuming_at_an_epochs_end(accumulate, first, second, engine):
    whole = uninterrupted(loader(), accumulate_grad_batches=accumulate)
    steps = 17 if accumulate == 1 else 9
    options = {"accumulate_grad_batches": accumulate, "every": steps}
    _, names = fit("first", loader(), strategy(first, engine), max_epochs=1, **options)
    assert names == [f"epoch=0-step={steps}.ckpt"]
    resumed, seen = go_on(
        loader(), strategy(second, engine, 5), f"first/{names[0]}", accumulate_grad_batches=accumulate
    )
    assert len(seen) == 34
    assert_goes_on(whole, resumed, seen, exact=engine == "eager")


@pytest.mark.narrow(11)
@pytest.mark.parametrize(("first", "second"), WAYS)
@pytest.mark.parametrize(("accumulate", "engine"), [(1, "eager"), (2, "traced")])
def test_resuming_in_mid_epoch_with_a_stateful_loader(accumulate, first, second, engine):
    """The checkpoint holds what is left of the epoch's order; a later order is drawn anew, in plain Lightning too."""
    options = {"accumulate_grad_batches": accumulate, "max_epochs": 2}
    whole = uninterrupted(stateful(), **options)
    fit("first", stateful(), strategy(first, engine), **options)
    name = f"first/epoch={0 if accumulate == 1 else 1}-step=12.ckpt"
    resumed, seen = go_on(stateful(), strategy(second, engine, 5), name, **options)
    assert len(seen) == 34 - (12 if accumulate == 1 else 17 + 6)
    reference, plainly = go_on(stateful(), "auto", name, **options)
    assert seen == plainly
    assert_same_leaves(reference.module.state_dict(), resumed.module.state_dict(), exact=engine == "eager")
    if accumulate == 2:  # the last epoch: what is left of its order is in the checkpoint
        assert_goes_on(whole, resumed, seen, exact=engine == "eager")
    else:
        assert seen[:5] == whole.batches.seen[12:17]


def test_resuming_in_mid_epoch_with_a_plain_loader_trains_what_is_left():
    """Plain Lightning begins such a loader anew, and trains the batches again that the checkpoint is behind of."""
    whole = uninterrupted(loader(8, last=8), max_epochs=1)
    fit("first", loader(8, last=8), strategy("sink"), max_epochs=1)
    left = {}
    for way in ("plain", "sink"):
        resumed, left[way] = go_on(loader(8, last=8), strategy(way), "first/epoch=0-step=3.ckpt", max_epochs=1)
        assert resumed.trainer.global_step == 8
    assert left["plain"] == whole.batches.seen[:5]  # docs/data.md says so
    assert_goes_on(whole, resumed, left["sink"], exact=True)


@pytest.mark.narrow(11)
@pytest.mark.parametrize(
    ("step", "accumulate", "engine"),
    [(3, 1, "eager"), (9, 1, "eager"), (18, 1, "eager"), (3, 2, "eager"), (9, 2, "eager"), (18, 2, "eager"),
     (18, 2, "traced")],
)  # fmt: skip
def test_an_endless_traversal_goes_on_with_the_right_batch(step, accumulate, engine):
    options = {"max_epochs": 5, "accumulate_grad_batches": accumulate}
    sinks = {"epoch": "sink", "size": 10}
    whole = uninterrupted(loader(), strategy("sink", engine, **sinks), **options)
    plain = uninterrupted(ContinuedLoader(loader(), 10), folder="plain", **options)
    assert whole.batches.seen == plain.batches.seen
    assert_parity(plain, whole, exact=engine == "eager")
    checkpoint = next(Path("whole").glob(f"*-step={step}.ckpt"))
    batches = read(checkpoint)["loops"]["fit_loop"]["epoch_loop.batch_progress"]["total"]["ready"]
    resumed, seen = go_on(loader(), strategy("sink", engine, **sinks), checkpoint, **options)
    assert len(seen) == 50 - batches
    assert_goes_on(whole, resumed, seen, exact=engine == "eager")


@pytest.mark.parametrize("engine", ENGINES)
def test_a_chain_of_resumed_trainings_writes_the_files_of_one(engine):
    """Two interruptions, each in the middle of a sink, with the checkpoint callback going on too."""
    whole = uninterrupted(loader(), strategy("sink", engine, 10, epoch="sink"), max_epochs=5)
    names = []
    for number, steps in enumerate((12, 27, 50)):
        checkpoint = f"{number - 1}/{names[-1]}" if number else None
        run, files = fit(
            str(number),
            loader(),
            strategy("sink", engine, 10, epoch="sink"),
            checkpoint=checkpoint,
            max_steps=steps,
            max_epochs=5,
        )
        names += sorted(files, key=lambda name: int(name.split("step=")[1][:-5]))
    assert sorted(names) == sorted(path.name for path in Path("whole").iterdir())
    assert_same_leaves(whole.module.state_dict(), run.module.state_dict(), exact=engine == "eager")


class Breaking:
    """A loader that fails at one batch of one traversal."""

    def __init__(self, inner, traversal, at):
        self.inner, self.traversal, self.at, self.begun = inner, traversal, at, -1

    def __len__(self):
        return len(self.inner)

    def __iter__(self):
        self.begun += 1
        for index, batch in enumerate(self.inner):
            if (self.begun, index) == (self.traversal, self.at):
                raise OSError("the disk is gone")
            yield batch


@pytest.mark.narrow(11)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("accumulate", [1, 2])
def test_the_checkpoint_of_a_failure_is_plain_lightnings(accumulate, engine):
    for folder, chosen in (("plain", "auto"), ("sink", strategy("sink", engine, -1))):
        saves = OnExceptionCheckpoint(folder, "broken")
        torch.manual_seed(7)
        with pytest.raises(OSError, match="the disk is gone"):
            train(
                Steady(), Breaking(loader(), 1, 11), chosen, callbacks=[saves], max_epochs=3,
                accumulate_grad_batches=accumulate, enable_checkpointing=True,
            )  # fmt: skip
    assert_same_leaves(content("plain/broken.ckpt", "plain"), content("sink/broken.ckpt", "sink"), engine == "eager")
    # What plain Lightning saved, which says nothing of the place in the data, resumes as in plain Lightning.
    resumed = [
        go_on(loader(), chosen, "plain/broken.ckpt", accumulate_grad_batches=accumulate)[0]
        for chosen in ("auto", strategy("sink", engine, 4))
    ]
    assert_same_leaves(*[run.module.state_dict() for run in resumed], exact=engine == "eager")
