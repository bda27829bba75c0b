"""`data_sink` trains what the same loop trains by hand, in however many steps a call has."""

import copy
import functools
import os
import signal
import threading
import warnings
from collections import OrderedDict, defaultdict
from contextlib import contextmanager
from itertools import islice
from typing import NamedTuple
from unittest import mock

import pytest
import torch
from torch import nn, optim
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import positions
from lightning_sink import CompileError, DataSink, EmptyDatasetError, SinkWarning, UnsupportedError, data_sink
from lightning_sink.data import pace
from lightning_sink.engine.compiler.toolchain import missing_compiler

ENGINES = pytest.mark.parametrize("engine", ["eager", "traced"])
missing = pytest.mark.skipif(missing_compiler() is not None, reason="no C++ compiler")


class Task:
    """A step over a module and its optimizer."""

    def __init__(self, scheduled=False):
        torch.manual_seed(3)
        self.model = nn.Sequential(
            nn.Linear(4, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3)
        )
        self.optimizer = optim.Adam(self.model.parameters(), 0.01)
        self.scheduler = optim.lr_scheduler.OneCycleLR(self.optimizer, 0.05, 60) if scheduled else None

    def step(self, x, y):
        self.optimizer.zero_grad()
        logits = self.model(x)
        loss = nn.functional.cross_entropy(logits, y)
        loss.backward()
        self.optimizer.step()
        return loss, logits, y.sum()

    def state(self):
        return {
            **self.model.state_dict(),
            **{f"{i}.{key}": v for i, kept in self.optimizer.state_dict()["state"].items() for key, v in kept.items()},
            "lr": torch.tensor(self.optimizer.param_groups[0]["lr"]),
        }


def loader(rows=52, batch_size=8, **options):
    torch.manual_seed(1)
    data = TensorDataset(torch.randn(rows, 4), torch.randint(3, (rows,)))
    return DataLoader(data, batch_size=batch_size, shuffle=True, **options)


def endless(batches):
    while True:
        yield from batches


def by_hand(task, batches, steps):
    torch.manual_seed(7)
    outputs = []
    for batch in islice(endless(batches), steps):
        outputs.append([tensor.detach().clone() for tensor in task.step(*batch)])
        if task.scheduler is not None:
            task.scheduler.step()
    return outputs


def in_sinks(task, batches, sizes, **options):
    torch.manual_seed(7)
    histories = []
    with data_sink(task.step, batches, max(sizes), schedulers=task.scheduler or (), **options) as sink:
        for _ in sizes:
            last = sink()
            histories.append(sink.history)
        return histories, last, sink


def assert_same(first, second, exact):
    close = {"rtol": 0, "atol": 0} if exact else {"rtol": 1e-4, "atol": 1e-5}
    first, second = first.state(), second.state()
    assert first.keys() == second.keys()
    for name, value in first.items():
        torch.testing.assert_close(second[name], value, **close)


@pytest.mark.narrow(11)
@ENGINES
@pytest.mark.parametrize("scheduled", [False, True])
@pytest.mark.parametrize("calls", [[60], [20] * 3, [1] * 60])
def test_calls_of_any_length_train_what_the_loop_trains(engine, scheduled, calls):
    plain, sunk = Task(scheduled), Task(scheduled)
    outputs = by_hand(plain, loader(), 60)
    histories, last, sink = in_sinks(sunk, loader(), calls, engine=engine)
    assert_same(plain, sunk, exact=engine == "eager")
    assert sink.steps == 60
    torch.testing.assert_close(last[1], outputs[-1][1], rtol=1e-4, atol=1e-5)
    losses = torch.cat([history["loss"] for history in histories])
    torch.testing.assert_close(losses, torch.stack([loss for loss, *_ in outputs]), rtol=1e-4, atol=1e-5)
    sums = torch.cat([history["2"] for history in histories])
    assert torch.equal(sums, torch.stack([total for *_, total in outputs]))
    logits = [item for history in histories for item in history["1"]]
    for found, (_, expected, _) in zip(logits, outputs, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_control_another_order_is_another_training():
    plain, sunk = Task(), Task()
    by_hand(plain, loader(), 60)
    in_sinks(sunk, list(loader()), [60], engine="eager")
    with pytest.raises(AssertionError):
        assert_same(plain, sunk, exact=False)


@pytest.mark.narrow
@missing
@pytest.mark.parametrize("scheduled", [False, True])
def test_a_compiled_sink_trains_what_the_loop_trains(scheduled):
    plain, sunk = Task(scheduled), Task(scheduled)
    batches = list(loader(48))
    outputs = by_hand(plain, batches, 60)
    histories, _, sink = in_sinks(sunk, batches, [20] * 3)
    assert sink.active_engine == "inductor"  # closed
    assert_same(plain, sunk, exact=False)
    logits = torch.cat([history["1"] for history in histories])
    torch.testing.assert_close(logits, torch.stack([logits for _, logits, _ in outputs]), rtol=1e-4, atol=1e-5)


@ENGINES
@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_with_workers_and_a_dataset_of_samples(engine, workers):
    options = {"num_workers": workers, "persistent_workers": False}
    samples = [(torch.full((4,), float(i)), i % 3) for i in range(20)]
    plain, sunk = Task(), Task()
    by_hand(plain, DataLoader(samples, 4, shuffle=True, **options), 13)
    in_sinks(sunk, DataLoader(samples, 4, shuffle=True, **options), [13], engine=engine)
    assert_same(plain, sunk, exact=engine == "eager")


class Stream(IterableDataset):
    """Without a length; each traversal draws its order."""

    def __iter__(self):
        for index in torch.randperm(80).tolist():
            yield torch.full((4,), index / 80), index % 3


@ENGINES
def test_a_traversal_that_begins_with_a_draw_has_it_in_its_turn(engine):
    """The end of data without a length is known when it is reached, and the steps before the next one draw too."""
    plain, sunk = Task(), Task()
    by_hand(plain, DataLoader(Stream(), 4), 90)
    with mock.patch.multiple(pace, _WARM_UP=0, _TRIAL=3):
        in_sinks(sunk, DataLoader(Stream(), 4), [90], engine=engine)
    assert_same(plain, sunk, exact=engine == "eager")


# -- what is found ---------------------------------------------------------------------------------------------------


def compiled_steps(sink):
    sink()
    return sink.active_engine == "traced"


def test_state_is_found_wherever_the_function_reaches_it():
    batches = list(loader(48))
    task = Task()
    helpers = {"model": task.model}

    def forward(x):
        return helpers["model"](x)

    def through_helper(x, y, scale=1.0):
        task.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(forward(x), y) * scale
        loss.backward()
        task.optimizer.step()
        return loss

    class Callable:
        def __init__(self):
            self.task = task

        def __call__(self, x, y):
            return self.task.step(x, y)

    for function in (task.step, through_helper, Callable(), lambda x, y: task.step(x, y)):
        with data_sink(function, batches, 20, engine="traced", fallback="error") as sink:
            assert compiled_steps(sink), function


def test_state_that_is_named_is_taken():
    batches, task = list(loader(48)), Task()
    held = {f"{i}": i for i in range(300)} | {"task": task}
    with data_sink(
        lambda x, y: held["task"].step(x, y),
        batches,
        20,
        engine="traced",
        fallback="error",
        state=[task.model, task.optimizer],
    ) as sink:
        assert compiled_steps(sink)


def test_names_may_stand_for_something_else_at_the_next_call():
    tasks, present, batches = [Task(), Task()], [], list(loader(48))

    def step(x, y):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    with data_sink(step, batches, 18, engine="traced", fallback="error") as sink:
        for task in tasks:
            model, optimizer = task.model, task.optimizer
            torch.manual_seed(7)
            sink()
            assert sink.active_engine == "traced"
            optimizer = optim.SGD(model.parameters(), 0.1)
            sink()
            present.append({key: value.clone() for key, value in model.state_dict().items()})
    for task, left in zip([Task(), Task()], present, strict=True):
        model, optimizer = task.model, task.optimizer
        torch.manual_seed(7)
        for batch in batches * 3:
            step(*batch)
        optimizer = optim.SGD(model.parameters(), 0.1)
        for batch in batches * 3:
            step(*batch)
        for key, value in model.state_dict().items():
            torch.testing.assert_close(left[key], value, rtol=1e-4, atol=1e-5)


class Bound:
    """A step that looks at what its object has and what its class has, and changes some of it."""

    options = {"scale": [1.0]}

    def __init__(self):
        self.task, self.factor, self.criterion = Task(), 1.0, nn.functional.cross_entropy
        self.average, self.count, self.losses = [torch.ones(3)], 0, []

    def step(self, x, y, weight=1.0):
        self.task.optimizer.zero_grad()
        scores = self.task.model(x) * self.average[0]
        loss = self.criterion(scores, y) * self.factor * self.options["scale"][0] * weight
        loss.backward()
        self.task.optimizer.step()
        return loss

    def counting(self, x, y):
        self.count += 1
        loss = self.step(x, y) * (2.0 if self.count % 8 == 0 else 1.0)
        self.losses.append(loss.item() if self.count % 16 == 0 else self.count)
        return loss


def replaced_criterion(bound):
    bound.criterion = nn.functional.multi_margin_loss


CHANGES = {
    "a number": lambda bound: setattr(bound, "factor", 3.0),
    "a function": replaced_criterion,
    "a tensor in a list": lambda bound: bound.average.__setitem__(0, torch.full((3,), 0.3)),
    "an item of the class": lambda bound: bound.options["scale"].__setitem__(0, 0.25),
    "the optimizer": lambda bound: setattr(bound.task, "optimizer", optim.SGD(bound.task.model.parameters(), 0.1)),
}
FORMS = {
    "method": lambda bound: bound.step,
    "partial": lambda bound: functools.partial(bound.step, weight=0.5),
    "function of a partial": lambda bound: functools.partial(Bound.step, bound),
    "closure": lambda bound: lambda x, y: bound.step(x, y),
}


@pytest.mark.narrow(11)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("change", CHANGES)
def test_what_the_step_is_bound_to_may_change_between_calls(form, change, monkeypatch):
    batches, left = list(loader(48)), []
    for sunk in (False, True):
        monkeypatch.setitem(Bound.options, "scale", [1.0])
        bound = Bound()
        step = FORMS[form](bound)
        torch.manual_seed(7)
        with data_sink(step, batches, 18, engine="traced" if sunk else "eager") as sink:
            for number in range(3):
                if number == 1:
                    CHANGES[change](bound)
                sink()
                assert sink.active_engine == ("traced" if sunk else "eager")
        left.append(bound.task)
    assert_same(*left, exact=False)
    with pytest.raises(AssertionError):  # the control: the change is one
        assert_same(left[0], unchanged(form), exact=False)


def unchanged(form):
    bound = Bound()
    torch.manual_seed(7)
    with data_sink(FORMS[form](bound), list(loader(48)), 54, engine="eager") as sink:
        sink()
    return bound.task


@pytest.mark.filterwarnings("ignore::lightning_sink.SinkWarning")
def test_what_the_step_changes_in_its_object_is_changed():
    batches, left = list(loader(48)), []
    for engine in ("eager", "traced"):
        bound = Bound()
        torch.manual_seed(7)
        with data_sink(bound.counting, batches, 40, engine=engine) as sink:
            sink()
            assert sink.active_engine == "eager"
        assert bound.count == len(bound.losses) == 40
        left.append(bound.task)
    assert_same(*left, exact=True)


def test_a_module_that_holds_its_optimizer():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(3)
            self.layer = nn.Linear(4, 3)
            self.optimizer = optim.Adam(self.layer.parameters(), 0.01)

        def step(self, x, y):
            self.optimizer.zero_grad()
            loss = nn.functional.cross_entropy(self.layer(x), y)
            loss.backward()
            self.optimizer.step()
            return loss

    batches, plain, sunk = list(loader(48)), Own(), Own()
    for x, y in batches * 3:
        plain.step(x, y)
    with data_sink(sunk.step, batches, 18, engine="traced", fallback="error") as sink:
        assert compiled_steps(sink)
    torch.testing.assert_close(sunk.layer.weight, plain.layer.weight, rtol=1e-4, atol=1e-5)


def test_two_sinks_share_a_module():
    plain, sunk = Task(), Task()
    batches, seen = list(loader(48)), []
    by_hand(plain, batches, 24)
    torch.manual_seed(7)

    @torch.no_grad()
    def evaluate(x, y):
        sunk.model.eval()
        correct = (sunk.model(x).argmax(1) == y).sum()
        sunk.model.train()
        return {"correct": correct}

    with (
        data_sink(sunk.step, batches, 12, engine="traced") as train,
        data_sink(evaluate, batches, 6, engine="eager") as test,
    ):
        for _ in range(2):
            train()
            test()
            seen.append(int(test.history["correct"].sum()))
            assert list(test.history) == ["correct"]
    assert_same(plain, sunk, exact=False)
    assert len(seen) == 2


@ENGINES
def test_a_module_alone_gives_its_outputs(engine):
    module, batches = nn.Linear(4, 2), [torch.randn(3, 4) for _ in range(12)]
    with data_sink(module, batches, 12, engine=engine) as sink:
        last = sink()
        assert torch.equal(sink.history["output"], torch.stack([module(x) for x in batches]).detach())
        assert not last.requires_grad


# -- warnings and errors ----------------------------------------------------------------------------------------------


class Given(NamedTuple):
    loss: torch.Tensor
    about: OrderedDict
    rows: defaultdict
    own: dict


class Own(dict):
    """A dictionary of the user's."""


@ENGINES
def test_what_the_step_returns_keeps_its_types(engine):
    task = Task()

    def step(x, y):
        loss, logits, rows = task.step(x, y)
        about = OrderedDict(logits=[logits], kind="plain", made=defaultdict(lambda: 1, loss=loss))
        return Given(loss, about, defaultdict(int, y=(rows,)), Own(logits=logits))

    with data_sink(step, loader(48), 6, engine=engine) as sink:
        for _ in range(3):
            given = sink()
    assert sink.active_engine == engine
    assert type(given) is Given
    assert (type(given.about), type(given.about["logits"]), given.about["kind"]) == (OrderedDict, list, "plain")
    assert (type(given.rows), type(given.rows["y"]), given.rows["x"]) == (defaultdict, tuple, 0)
    assert type(given.about["made"]) is dict, "a function of each step's own is no part of what is returned"
    assert not given.loss.requires_grad
    assert not given.about["logits"][0].requires_grad
    assert type(given.own) is dict
    assert not given.own["logits"].requires_grad


@ENGINES
@positions.needed
def test_numbers_that_the_step_returns_are_those_of_its_batch(engine):
    task = Task()

    def step(x, y):
        loss, logits, _ = task.step(x, y)
        right = (logits.argmax(1) == y).sum().item()
        return loss, {"loss": loss.item(), "right": right, "share": right / len(y)}, logits, y

    with data_sink(step, loader(48), 5, engine=engine) as sink:
        for _ in range(4):
            loss, numbers, logits, y = sink()
            right = int((logits.argmax(1) == y).sum())
            assert numbers == {"loss": loss.item(), "right": right, "share": pytest.approx(right / len(y))}
            assert [type(number) for number in numbers.values()] == [float, int, float]
    assert sink.active_engine == engine


def test_a_step_that_steps_its_scheduler_runs_eagerly_and_says_so():
    plain, sunk = Task(scheduled=True), Task(scheduled=True)
    batches = list(loader(48))
    by_hand(plain, batches, 20)

    def step(x, y):
        outputs = sunk.step(x, y)
        sunk.scheduler.step()
        return outputs

    torch.manual_seed(7)
    with data_sink(step, batches, 20, engine="traced") as sink:
        with pytest.warns(SinkWarning, match=r"(?s)scheduler.step\(\).*data_sink\(engine=\"eager\"\)"):
            sink()
        assert sink.active_engine == "eager"
    assert_same(plain, sunk, exact=True)
    with data_sink(step, batches, 20, engine="traced", fallback="error") as sink, pytest.raises(CompileError):
        sink()


def test_a_batch_of_nothing_among_batches_of_too_many_kinds():
    task = Task()
    batches = [*[(torch.ones(size, 4), torch.zeros(size, dtype=torch.int64)) for size in range(2, 40)], ()]

    def step(*parts):
        return task.step(*parts) if parts else torch.zeros(())

    with data_sink(step, batches, 39, engine="traced") as sink:
        with pytest.warns(SinkWarning, match="too many kinds"):
            sink()
        assert sink.steps == 39


def test_values_that_keep_changing_are_named_as_the_loaders_batch_has_them():
    task, batches = Task(), [{"x": x, "y": y, "n": number} for number, (x, y) in enumerate(loader(320))]
    step = lambda batch: task.step(batch["x"], batch["y"])  # noqa: E731
    with (
        data_sink(step, batches, 40, engine="traced") as sink,
        pytest.warns(SinkWarning, match=r"`batch\['n'\]` \(no line"),
    ):
        sink()
    step = lambda x, y, n: task.step(x, y)  # noqa: E731
    batches = [tuple(batch.values()) for batch in batches]
    said = pytest.warns(SinkWarning, match=r"`batch\[2\]` \(no line")
    with data_sink(step, batches, 40, engine="traced") as sink, said:
        sink()


WRONG = {
    "fn": (lambda: data_sink(3, [])),
    "dataset": (lambda: data_sink(print, 3)),
    "sink_size, none": (lambda: data_sink(print, [], 0)),
    "sink_size, a bool": (lambda: data_sink(print, [], True)),
    "engine": (lambda: data_sink(print, [], engine="fast")),
    "fallback": (lambda: data_sink(print, [], fallback=None)),
    "verify": (lambda: data_sink(print, [], verify=-1)),
    "input_signature": (lambda: data_sink(print, [], input_signature=[(3, torch.float32)])),
    "state": (lambda: data_sink(print, [], state=[3])),
    "schedulers": (lambda: data_sink(print, [], schedulers=[3])),
    "schedulers, of a metric": (
        lambda: data_sink(print, [], schedulers=optim.lr_scheduler.ReduceLROnPlateau(Task().optimizer))
    ),
    "buffer_size": (lambda: data_sink(print, [], buffer_size=-1)),
    "timeout": (lambda: data_sink(print, [], timeout=0)),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_options_are_refused_at_once(case):
    with pytest.raises((TypeError, ValueError), match=f"{case.split(',')[0]}.* takes "):
        WRONG[case]()


def test_a_dataset_without_batches_is_an_error():
    with data_sink(Task().step, [], 3) as sink, pytest.raises(EmptyDatasetError):
        sink()


def test_a_generator_can_be_traversed_once_and_says_so():
    batches = list(loader(48))
    with data_sink(Task().step, (batch for batch in batches), 10, engine="eager") as sink:
        with pytest.raises(EmptyDatasetError, match="in traversal 1, and did before: an iterator or a generator"):
            sink()
        assert sink.steps == 6


@missing
def test_a_wrong_target_is_an_error_also_where_nobody_looks_at_the_loss():
    module = nn.Linear(4, 3)
    optimizer = optim.SGD(module.parameters(), 0.1)

    def step(x, y):
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(x), y).backward()
        optimizer.step()

    batches = [(x, y.clone()) for x, y in loader(320)]
    batches[30][1][2] = -1
    with data_sink(step, batches, 40) as sink:
        with pytest.raises(IndexError, match="0 <= index < 3") as raised:
            sink()
        assert "batch 30 of traversal 0" in raised.value.__notes__[0]
        assert sink.steps == 30


@ENGINES
def test_batches_are_compared_with_the_signature(engine):
    task, batches = Task(), [*loader(48), (torch.randn(8, 5), torch.zeros(8, dtype=torch.int64))]
    untrained = copy.deepcopy(task.model.state_dict())
    signature = [torch.empty(8, 4), ((None,), torch.int64)]
    with data_sink(task.step, batches, 12, engine=engine, input_signature=signature) as sink:
        with pytest.raises(
            ValueError,
            match=r"`x` of batch 6 of traversal 0 is torch.float32 of shape \(8, 5\); .* of shape \(8, 4\)",
        ):
            sink()
        assert sink.steps == 6
        assert len(sink.history["loss"]) == 6
        with pytest.raises(ValueError, match="batch 6 of traversal 1"):
            sink()
        assert sink.steps == 12
    assert not torch.equal(untrained["0.weight"], task.model[0].weight)


@ENGINES
def test_an_error_of_the_step_leaves_the_steps_before_it(engine):
    plain, sunk = Task(), Task()
    batches = list(loader(80))
    by_hand(plain, batches[:7], 7)
    wrong = [(x, y.clone()) for x, y in batches]
    wrong[7][1][2] = 9
    torch.manual_seed(7)
    with data_sink(sunk.step, wrong, 10, engine=engine) as sink:
        with pytest.raises(IndexError):
            sink()
        assert sink.steps == len(sink.history["loss"]) == 7
    for name, parameter in plain.model.named_parameters():
        torch.testing.assert_close(sunk.model.get_parameter(name), parameter, rtol=1e-4, atol=1e-5)


def test_an_error_of_the_dataset_says_which_batch():
    class Fails:
        def __iter__(self):
            yield from list(loader(48))[:4]
            raise OSError("disk")

    with data_sink(Task().step, Fails(), 10, engine="eager") as sink:
        with pytest.raises(OSError, match="disk") as raised:
            sink()
        assert "batch 4 of traversal 0" in raised.value.__notes__[0]
        assert sink.steps == 4


def test_ctrl_c_ends_the_call_between_two_steps():
    task, batches = Task(), list(loader(48))
    plain = Task()

    def step(x, y):
        outputs = task.step(x, y)
        if task.optimizer.state[task.model[0].weight]["step"] == 9:
            os.kill(os.getpid(), signal.SIGINT)
        return outputs

    torch.manual_seed(7)
    with data_sink(step, batches, 30, engine="eager") as sink:
        with pytest.raises(KeyboardInterrupt):
            sink()
        assert sink.steps == 9
        assert len(sink.history["loss"]) == 9
    by_hand(plain, batches, 9)
    assert_same(plain, task, exact=True)


# -- around it -------------------------------------------------------------------------------------------------------


def test_what_users_look_at():
    task = Task()
    sink = data_sink(task.step, list(loader(48)), 5, engine="traced")
    assert isinstance(sink, DataSink)
    assert sink.history == {}
    assert repr(sink) == "<DataSink of Task.step: sink_size=5, engine='traced', 0 steps>"
    sink()
    sink()
    assert repr(sink) == "<DataSink of Task.step: sink_size=5, engine='traced', 10 steps>"
    assert sink.queue_report().batches_consumed == 10
    sink.close()
    assert sink.queue_report().batches_consumed == 10
    sink()
    assert sink.steps == 15
    sink.close()


def test_another_thread_may_train():
    plain, sunk, done = Task(), Task(), []
    by_hand(plain, list(loader(48)), 20)
    thread = threading.Thread(target=lambda: done.append(in_sinks(sunk, list(loader(48)), [20], engine="traced")))
    thread.start()
    thread.join()
    assert len(done) == 1
    assert_same(plain, sunk, exact=False)


@ENGINES
def test_a_sink_that_is_running_is_refused_to_others(engine):
    plain, sunk, waits, goes_on = Task(), Task(), threading.Event(), threading.Event()
    batches = list(loader(48))
    by_hand(plain, batches, 40)

    class Waits:
        def __iter__(self):
            for number, batch in enumerate(batches):
                if number == 3:
                    waits.set()
                    assert goes_on.wait(30)
                yield batch

    sunk.sink = data_sink(sunk.step, Waits(), 20, engine=engine)
    thread = threading.Thread(target=sunk.sink)
    torch.manual_seed(7)
    thread.start()
    assert waits.wait(30)
    with pytest.raises(UnsupportedError, match=r"Task\.step.* is running: .*Call it when it has returned"):
        sunk.sink()
    goes_on.set()
    thread.join()
    assert sunk.sink.steps == 20
    sunk.sink()
    sunk.sink.close()
    assert_same(plain, sunk, exact=engine == "eager")


def test_a_sink_may_be_copied():
    task = Task()
    with copy.deepcopy(data_sink(task.step, list(loader(48)), 5, engine="eager")) as sink:
        sink()
        assert sink.steps == 5


def test_a_step_that_calls_its_own_sink_is_told_so():
    task = Task()

    def step(x, y):
        task.step(x, y)
        sink()

    with (
        data_sink(step, list(loader(48)), 5, engine="eager") as sink,
        pytest.raises(UnsupportedError, match="own step"),
    ):
        sink()


class Losing(Task):
    """A step whose third call fails, and in which all sorts of things count the calls."""

    def __init__(self, forward):
        super().__init__()
        self.calls, self.kept, self.forward = 0, {"calls": [0]}, forward

    def bound(self):
        calls = 0

        def step(x, y):
            nonlocal calls
            calls += 1
            self.calls += 1
            self.kept["calls"].append(calls)
            if calls == 3:
                raise ValueError("lost")
            if self.forward:  # no recording can have it
                torch.func.jvp(self.model[4], (torch.ones(8),), (torch.ones(8),))
            out = super(Losing, self).step(x, y)
            return out[0] * (1 + calls)

        return step


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # of torch's own rules for it
@pytest.mark.parametrize("forward", [False, True])
def test_what_a_step_that_fails_while_it_is_recorded_has_counted_is_counted_once(forward):
    plain, sunk = Losing(forward), Losing(forward)
    batches, found = list(loader(48)), []
    for task, engine in ((plain, "eager"), (sunk, "traced")):
        torch.manual_seed(7)
        with data_sink(task.bound(), batches, 1, engine=engine) as sink, warnings.catch_warnings():
            warnings.simplefilter("ignore", SinkWarning)
            errors = []
            for _ in range(12):
                try:
                    errors.append(float(sink()))
                except ValueError as error:
                    errors.append(str(error))
        found.append(errors)
    assert found[0][2] == found[1][2] == "lost"
    assert found[0][3:] == pytest.approx(found[1][3:], rel=1e-4)
    assert plain.calls == sunk.calls == 12
    assert plain.kept == sunk.kept
    assert_same(plain, sunk, exact=False)


def test_a_generator_that_the_step_and_the_data_share():
    def trained(sink):
        task, source = Task(), torch.Generator().manual_seed(5)

        class Noisy(IterableDataset):
            def __iter__(self):
                torch.manual_seed(1)
                for x, y in loader(48):
                    yield x + torch.rand((), generator=source), y

        def step(x, y):
            return task.step(x * torch.rand((), generator=source), y)[0]

        torch.manual_seed(7)
        if sink:
            with data_sink(step, Noisy(), 6, engine="eager") as run:
                _ = [run() for _ in range(6)]
        else:
            for x, y in islice((batch for _ in range(6) for batch in Noisy()), 36):
                step(x, y)
        return task, source

    (plain, source), (sunk, other) = trained(False), trained(True)
    assert torch.equal(source.get_state(), other.get_state())
    assert_same(plain, sunk, exact=True)


def test_a_traversal_that_failed_to_begin_begins_anew():
    class Fails:
        begun = 0

        def __iter__(self):
            self.begun += 1
            if self.begun == 3:
                raise OSError("not there yet")
            return iter([torch.ones(4, 6)] * 5)

    model = nn.Linear(6, 1)
    with data_sink(lambda x: model(x).sum(), Fails(), 5, engine="eager") as sink:
        sink()
        sink()
        with pytest.raises(OSError, match="not there yet"):
            sink()
        sink()
        assert sink.steps == 15


def test_a_list_that_looks_like_a_loader():
    class Batches(list):
        num_workers = 2

    model = nn.Linear(6, 1)
    with data_sink(lambda x: model(x).sum(), Batches([torch.ones(4, 6)] * 5), 12, engine="eager") as sink:
        sink()
        assert sink.steps == 12


class Played:
    """A dataset that plays with the model, and changes what its step reads."""

    def __init__(self, model):
        self.model = model

    def __iter__(self):
        for number in range(40):
            self.model.scale = 1.0 + number // 7
            yield torch.full((4, 4), number / 40)


def played(compiled):
    torch.manual_seed(3)
    model = nn.Linear(4, 1)
    optimizer = optim.SGD(model.parameters(), 0.01)

    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean() * model.scale
        loss.backward()
        optimizer.step()
        return loss

    if compiled:
        with data_sink(step, Played(model), 40, engine="traced") as sink:
            sink()
    else:
        for x in Played(model):
            step(x)
    return model.weight


def test_what_a_fetch_changes_is_what_the_step_finds():
    torch.testing.assert_close(played(compiled=True), played(compiled=False))


class Labelled(torch.utils.data.Dataset):
    """Has the present weights in its rows, once it has been given the model."""

    def __init__(self):
        self.rows, self.model = loader(128).dataset, None

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        x, y = self.rows[index]
        return (x if self.model is None else x + self.model[0].weight.detach().mean()), y


@ENGINES
def test_a_dataset_that_is_given_the_model_between_two_calls(engine):
    plain, sunk = Task(), Task()
    expected, rows = DataLoader(Labelled(), 8), DataLoader(Labelled(), 8)
    by_hand(plain, expected, 32)
    expected.dataset.model = plain.model
    for batch in islice(endless(expected), 64):
        plain.step(*batch)
    torch.manual_seed(7)
    with data_sink(sunk.step, rows, 32, engine=engine) as sink:
        sink()
        rows.dataset.model = sunk.model
        sink()
        sink()
        assert "holds the module" in str(sink.queue_report())
    assert_same(plain, sunk, exact=engine == "eager")


class Halves(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        return out * 0.5 if func is nn.functional.relu else out


@contextmanager
def half_gradients():
    def halve(optimizer, args, kwargs):
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad.mul_(0.5)

    handle = register_optimizer_step_pre_hook(halve)
    yield
    handle.remove()


def half_of_what_is_saved():
    pack = lambda tensor: tensor * 0.5 if tensor.is_floating_point() else tensor  # noqa: E731
    return torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)


@pytest.mark.parametrize("around", [Halves, half_gradients, half_of_what_is_saved])
def test_hooks_and_modes_that_are_entered_around_a_call(around):
    plain, sunk = Task(), Task()
    batches = list(loader(48))
    for task in (plain, sunk):
        task.optimizer = optim.SGD(task.model.parameters(), 0.1)
        task.model[3] = nn.Identity()
    by_hand(plain, batches, 30)
    with around():
        for x, y in islice(endless(batches), 30):
            plain.step(x, y)
    with data_sink(sunk.step, batches, 30, engine="traced") as sink, warnings.catch_warnings():
        sink()
        warnings.simplefilter("ignore", SinkWarning)  # what runs in a mode of the user's is the user's code
        with around():
            sink()
    assert_same(plain, sunk, exact=False)


class Called:
    """A step that is an object, and keeps what no program can know."""

    def __init__(self, task):
        self.task, self.seen = task, 0

    def __call__(self, x, y):
        loss, _, total = self.task.step(x, y)
        self.seen = int(total)
        return loss


def test_the_line_of_an_object_that_is_called_is_named():
    with data_sink(Called(Task()), loader(), 40, engine="traced") as sink, pytest.warns(SinkWarning) as caught:
        sink()
    assert "test_data_sink.py:" in str(caught[0].message)
