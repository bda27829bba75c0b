"""A watched thread waits before it touches what the whole process shares, each time, and for nothing else."""

import copy
import functools
import multiprocessing
import os
import pickle
import random
import subprocess
import sys
import threading
import uuid

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, RandomSampler, random_split

from lightning_sink.data.turn import NumpyTurns, watched

# As `from random import ...` binds them, before anything is watched.
draw, gauss, shuffle, uniform = random.random, random.gauss, random.shuffle, random.uniform
rand, normal = torch.rand, np.random.normal
global_state = np.random.mtrand._rand
ONES = torch.ones(4)

TORCH = "torch's default generator"
PYTHON = "Python's `random`"
NUMPY = "numpy's global generator"
PROCESSES = "new processes"


class Stop(BaseException):
    pass


@pytest.fixture
def numpy_turns():
    turns = NumpyTurns()
    turns.install()
    yield turns
    turns.remove()


def states():
    return torch.default_generator.get_state().tolist(), random.getstate(), repr(np.random.get_state())


def stop(what):
    raise Stop(what)


def waits_of(action):
    """Returns what an action waited for."""
    waits = []
    with watched(waits.append):
        action()
    return waits


TORCH_DRAWS = {
    "rand": lambda: torch.rand(2),
    "alias": lambda: rand(2),
    "randn": lambda: torch.randn(2),
    "randint": lambda: torch.randint(9, (2,)),
    "randperm": lambda: torch.randperm(5),
    "like": lambda: torch.rand_like(ONES),
    "out": lambda: torch.rand(2, out=torch.empty(2)),
    "in place": lambda: torch.empty(2).normal_(),
    "exponential": lambda: torch.empty(2).exponential_(),
    "random_": lambda: torch.empty(2).random_(),
    "bernoulli": lambda: torch.bernoulli(ONES / 2),
    "multinomial": lambda: torch.multinomial(ONES, 1),
    "normal": lambda: torch.normal(0.0, 1.0, (2,)),
    "Linear": lambda: torch.nn.Linear(2, 2),
    "dropout": lambda: torch.nn.functional.dropout(ONES),
    "rrelu": lambda: torch.nn.functional.rrelu(-ONES, training=True),
    "gumbel": lambda: torch.nn.functional.gumbel_softmax(ONES),
    "trunc_normal_": lambda: torch.nn.init.trunc_normal_(torch.empty(2)),
    "distribution": lambda: torch.distributions.Dirichlet(ONES).sample(),
    "begin a loader": lambda: iter(DataLoader([1, 2])),
    "shuffle": lambda: list(RandomSampler([1, 2])),
    "manual_seed": lambda: torch.manual_seed(9),
    "seed": lambda: torch.seed(),
}
OWN_GENERATOR_DRAWS = {
    "given": lambda: torch.rand(2, generator=torch.default_generator),
    "given in place": lambda: torch.empty(2).random_(generator=torch.default_generator),
    "random_split": lambda: random_split([1, 2], [1, 1]),
    "sampler": lambda: list(RandomSampler([1, 2], generator=torch.default_generator)),
}
PYTHON_DRAWS = {
    "random": lambda: random.random(),
    "alias": lambda: draw(),
    "alias of gauss": lambda: gauss(0, 1),
    "alias of shuffle": lambda: shuffle([1, 2, 3]),
    "alias of uniform": lambda: uniform(0, 1),
    "choice": lambda: random.choice([1, 2, 3]),
    "sample": lambda: random.sample(range(9), 3),
    "getrandbits": lambda: random.getrandbits(3),
    "randbytes": lambda: random.randbytes(3),
    "the object": lambda: random._inst.random(),
    "the class": lambda: random.Random.random(random._inst),
    "arguments": lambda: random.random(*()),
    "key": lambda: sorted([1, 2], key=lambda item: random.random()),
    "seed": lambda: random.seed(9),
}
NUMPY_DRAWS = {
    "rand": lambda: np.random.rand(),
    "randn": lambda: np.random.randn(2),
    "random": lambda: np.random.random(),
    "randint": lambda: np.random.randint(9, size=3),
    "shuffle": lambda: np.random.shuffle([1, 2, 3]),
    "shuffle rows": lambda: np.random.shuffle(np.arange(8).reshape(4, 2)),
    "permutation": lambda: np.random.permutation(4),
    "choice": lambda: np.random.choice(3),
    "choice of some": lambda: np.random.choice(5, 2, replace=False),
    "weighted choice": lambda: np.random.choice(2, p=[0.5, 0.5]),
    "bytes": lambda: np.random.bytes(3),
    "alias of normal": lambda: normal(),
    "uniform": lambda: np.random.uniform(0, 1, 3),
    "multinomial": lambda: np.random.multinomial(3, [0.5, 0.5]),
    "multivariate": lambda: np.random.multivariate_normal([0], [[1]]),
    "dirichlet": lambda: np.random.dirichlet([1, 2]),
    "binomial": lambda: np.random.binomial(9, 0.5),
    "poisson": lambda: np.random.poisson(3),
    "gamma": lambda: np.random.gamma(2),
    "beta": lambda: np.random.beta(1, 2),
    "the object": lambda: global_state.rand(),
    "the object's integers": lambda: global_state.randint(9, size=3),
    "seed": lambda: np.random.seed(9),
    "seed of numbers": lambda: np.random.seed([1, 2]),
    "seed of the system": lambda: np.random.seed(),
    "a Generator over it": lambda: np.random.Generator(np.random.get_bit_generator()).random(),
}
DRAWS = [
    (name, what, action)
    for what, actions in ((TORCH, TORCH_DRAWS), (PYTHON, PYTHON_DRAWS), (NUMPY, NUMPY_DRAWS))
    for name, action in actions.items()
]


def check_draw(what, action):
    before = states()
    with pytest.raises(Stop, match=what), watched(stop):
        action()
    assert states() == before
    assert set(waits_of(action)) == {what}
    assert states() != before  # the control: it does touch what it waited for


@pytest.mark.usefixtures("numpy_turns")
@pytest.mark.parametrize(("name", "what", "action"), DRAWS, ids=lambda part: part if isinstance(part, str) else "")
def test_a_draw_waits_before_it_happens(name, what, action):
    check_draw(what, action)


@pytest.mark.parametrize("name", OWN_GENERATOR_DRAWS)
def test_the_default_generator_given_by_name_is_no_private_one(name):
    check_draw(TORCH, OWN_GENERATOR_DRAWS[name])


READS_AND_WRITES = {
    "torch get": (TORCH, torch.get_rng_state),
    "torch set": (TORCH, lambda: torch.set_rng_state(TORCH_STATE)),
    "torch method": (TORCH, lambda: torch.default_generator.set_state(TORCH_STATE)),
    "torch initial_seed": (TORCH, torch.initial_seed),
    "python get": (PYTHON, lambda: random.getstate()),
    "python set": (PYTHON, lambda: random.setstate(PYTHON_STATE)),
    "numpy get": (NUMPY, lambda: np.random.get_state()),
    "numpy get as dict": (NUMPY, lambda: np.random.get_state(legacy=False)),
    "numpy set": (NUMPY, lambda: np.random.set_state(NUMPY_STATE)),
    "numpy object": (NUMPY, lambda: global_state.set_state(NUMPY_STATE)),
}
TORCH_STATE = torch.Generator().manual_seed(5).get_state()
PYTHON_STATE = random.Random(5).getstate()
NUMPY_STATE = np.random.RandomState(5).get_state()


@pytest.mark.usefixtures("numpy_turns")
@pytest.mark.parametrize("name", READS_AND_WRITES)
def test_reading_or_setting_a_state_waits_before_it_happens(name):
    what, action = READS_AND_WRITES[name]
    before = states()
    with pytest.raises(Stop, match=what), watched(stop):
        action()
    assert states() == before
    assert set(waits_of(action)) == {what}
    assert (states() != before) == ("set" in name or name in ("torch method", "numpy object"))


PRIVATE = {
    "python": lambda: random.Random(3).shuffle([1, 2, 3]),
    "system": lambda: random.SystemRandom().random(),
    "uuid": uuid.uuid4,
    "RandomState": lambda: np.random.RandomState(3).shuffle([1, 2]),
    "default_rng": lambda: np.random.default_rng(3).random(),
    "torch": lambda: torch.rand(2, generator=torch.Generator().manual_seed(3)),
    "torch in place": lambda: torch.empty(2).normal_(generator=torch.Generator()),
    "torch sampler": lambda: list(RandomSampler([1, 2], generator=torch.Generator())),
    "torch state": lambda: torch.Generator().get_state(),
    "arithmetic": lambda: (ONES @ ONES + 1).sum().item(),
    "no dropout": lambda: torch.nn.functional.dropout(ONES, training=False),
    "arrays": lambda: np.sort(np.arange(4.0)[::-1]).sum(),
    "files": lambda: os.listdir("."),
    "names": lambda: getattr(random, "random"),  # noqa: B009
}


@pytest.mark.usefixtures("numpy_turns")
@pytest.mark.parametrize("name", PRIVATE)
def test_what_belongs_to_nobody_else_does_not_wait(name):
    before = states()
    assert waits_of(PRIVATE[name]) == []
    assert states() == before


def start(method):
    multiprocessing.get_context(method).Process(target=int).start()


STARTS = {
    "fork": lambda: os.fork(),
    "forkpty": lambda: os.forkpty(),
    "posix_spawn": lambda: os.posix_spawn("/bin/true", ["true"], {}),
    "subprocess": lambda: subprocess.run(["true"]),
    "popen": lambda: os.popen("true"),
    "process forked": lambda: start("fork"),
    "process spawned": lambda: start("spawn"),
}


@pytest.mark.parametrize("name", STARTS)
def test_a_process_waits_before_it_is_started(name):
    # That none is started is seen by conftest, which finds no child.
    with pytest.raises(Stop, match=PROCESSES), watched(stop):
        STARTS[name]()


def test_a_process_is_started_when_the_wait_returns():
    results = []
    assert PROCESSES in waits_of(lambda: results.append(subprocess.run(["true"]).returncode))
    assert results == [0]


@pytest.mark.usefixtures("numpy_turns")
def test_each_touch_waits_anew():
    waits = waits_of(lambda: (draw(), torch.rand(2), np.random.rand(), draw(), torch.rand(2), np.random.rand()))
    assert waits == [PYTHON, TORCH, NUMPY] * 2


@pytest.mark.usefixtures("numpy_turns")
def test_only_the_watched_thread_is_watched():
    waits, numbers = [], []

    def elsewhere():
        numbers.append((random.random(), torch.rand(()).item(), np.random.rand()))

    with watched(waits.append):
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join(20)
    assert len(numbers) == 1
    assert waits == []
    elsewhere()
    assert waits == []  # and this one no longer


@pytest.mark.usefixtures("numpy_turns")
def test_two_threads_wait_apart():
    waits = {"one": [], "other": []}

    def work(name, action):
        with watched(waits[name].append):
            meet.wait(20)
            action()
            meet.wait(20)

    meet = threading.Barrier(2)
    threads = [
        threading.Thread(target=work, args=("one", lambda: (np.random.rand(), random.random()))),
        threading.Thread(target=work, args=("other", lambda: torch.rand(2))),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert waits == {"one": [NUMPY, PYTHON], "other": [TORCH]}


def test_others_go_on_while_one_waits():
    waiting, go = threading.Event(), threading.Event()
    drawn = []

    def wait(what):
        waiting.set()
        assert go.wait(20)

    def work(turns):
        with watched(wait):
            drawn.append(np.random.rand())

    turns = NumpyTurns()
    turns.install()
    np.random.seed(3)
    thread = threading.Thread(target=work, args=(turns,))
    thread.start()
    assert waiting.wait(20)
    mine = np.random.rand()  # would not return if the lock were held
    go.set()
    thread.join(20)
    turns.remove()
    assert [mine, *drawn] == np.random.RandomState(3).rand(2).tolist()


@pytest.mark.parametrize("action", [draw, lambda: torch.rand(2), lambda: np.random.rand()])
@pytest.mark.usefixtures("numpy_turns")
def test_what_wait_raises_leaves_through_the_users_code(action):
    cleaned = []

    def user():
        try:
            action()
        except Exception:  # as careless code does
            cleaned.append("never")
        finally:
            cleaned.append("finally")

    before = states()
    with pytest.raises(Stop), watched(stop):
        user()
    assert cleaned == ["finally"]
    assert states() == before


def test_the_profile_hook_before_is_restored():
    def hook(frame, event, argument):
        pass

    before = sys.getprofile()
    sys.setprofile(hook)
    try:
        with watched(lambda what: None):
            assert sys.getprofile() is not hook
        after = sys.getprofile()
        with pytest.raises(Stop), watched(stop):
            random.random()
        after_error = sys.getprofile()
    finally:
        sys.setprofile(before)
    assert after is hook
    assert after_error is hook


def test_nothing_is_watched_afterwards():
    waits = []
    with watched(waits.append):
        pass
    draw(), torch.rand(2)
    assert waits == []


# -- numpy's generator, in and out -------------------------------------------------------------------------------------


def numbers():
    """Draws of many kinds; the gaussian one caches every second number."""
    return [
        np.random.normal(),
        np.random.rand(),
        np.random.normal(),
        np.random.normal(),
        *np.random.permutation(5).tolist(),
        np.random.randint(1 << 30),
        *np.random.standard_gamma(2.0, 3).tolist(),
    ]


def test_draws_are_the_same_with_and_without():
    np.random.seed(4)
    expected = numbers() + numbers() + numbers()
    np.random.seed(4)
    turns = NumpyTurns()
    found = numbers()
    turns.install()
    found += numbers()
    turns.remove()
    assert found + numbers() == expected


@pytest.mark.parametrize("before", [0, 1, 2])
@pytest.mark.parametrize("within", [0, 1, 2])
def test_the_cached_gaussian_is_carried_both_ways(before, within):
    np.random.seed(4)
    expected = [np.random.normal() for _ in range(6)]
    np.random.seed(4)
    found = [np.random.normal() for _ in range(before)]
    turns = NumpyTurns()
    turns.install()
    found += [np.random.normal() for _ in range(within)]
    turns.remove()
    assert found + [np.random.normal() for _ in range(6 - len(found))] == expected


@pytest.mark.usefixtures("numpy_turns")
def test_seeds_and_states_work_as_ever():
    np.random.seed(8)
    assert np.random.rand() == np.random.RandomState(8).rand()
    np.random.normal()
    state = np.random.get_state()
    assert state[0] == "MT19937"
    first = numbers()
    np.random.set_state(state)
    assert numbers() == first
    other = np.random.RandomState()
    other.set_state(state)
    assert other.normal() == first[0]


def test_the_generator_is_the_same_object_afterwards():
    original, state = np.random.get_bit_generator(), np.random.mtrand._rand
    turns = NumpyTurns()
    turns.install()
    assert np.random.get_bit_generator() is not original
    turns.remove()
    assert np.random.get_bit_generator() is original
    assert np.random.mtrand._rand is state


def test_installing_and_removing_twice_is_once():
    original = np.random.get_bit_generator()
    turns = NumpyTurns()
    turns.remove()
    assert np.random.get_bit_generator() is original
    turns.install()
    installed = np.random.get_bit_generator()
    turns.install()
    assert np.random.get_bit_generator() is installed
    turns.remove()
    np.random.rand()
    drawn = states()
    turns.remove()
    assert np.random.get_bit_generator() is original
    assert states() == drawn
    turns.install()
    assert waits_of(np.random.rand) == [NUMPY]
    turns.remove()


@pytest.mark.parametrize("last", ["the first", "the second"])
def test_two_queues_share_the_lock_until_the_last_one_ends(last):
    original = np.random.get_bit_generator()
    first, second = NumpyTurns(), NumpyTurns()
    first.install()
    second.install()
    (second if last == "the first" else first).remove()
    try:
        assert waits_of(np.random.rand) == [NUMPY]
    finally:
        (first if last == "the first" else second).remove()
    assert np.random.get_bit_generator() is original


@pytest.mark.parametrize("then", ["the same", "another", "another that is installed"])
def test_a_use_that_is_given_up_swaps_nothing_until_the_next(then):
    original = np.random.get_bit_generator()
    np.random.seed(4)
    expected = [np.random.normal() for _ in range(3)]
    np.random.seed(4)
    turns, other = NumpyTurns(), NumpyTurns()
    turns.install()
    installed, found = np.random.get_bit_generator(), [np.random.normal()]
    turns.give_up()
    turns.give_up()
    assert np.random.get_bit_generator() is installed is not original
    found.append(np.random.normal())
    if then == "another that is installed":
        other.install()
        turns.remove()
        assert np.random.get_bit_generator() is installed
    (turns if then == "the same" else other).remove()
    assert np.random.get_bit_generator() is original
    assert [*found, np.random.normal()] == expected


def test_a_generator_that_the_user_put_in_place_meanwhile_stays():
    original, users = np.random.get_bit_generator(), np.random.PCG64(1)
    turns = NumpyTurns()
    turns.install()
    try:
        np.random.set_bit_generator(users)
        turns.remove()
        assert np.random.get_bit_generator() is users
    finally:
        np.random.set_bit_generator(original)


@pytest.mark.parametrize("how", [copy.deepcopy, lambda item: pickle.loads(pickle.dumps(item))])
@pytest.mark.usefixtures("numpy_turns")
def test_the_global_generator_can_be_copied(how):
    # scikit-learn's check_random_state(None) gives it to objects, which are pickled to workers and checkpoints.
    twin = how(np.random.mtrand._rand)
    expected = twin.rand()
    assert np.random.rand() == expected
    assert waits_of(twin.rand) == []  # nobody else's


def test_without_numpy_there_is_nothing_to_do(monkeypatch):
    monkeypatch.delitem(sys.modules, "numpy")
    turns = NumpyTurns()
    turns.install()
    turns.remove()
    monkeypatch.undo()
    assert type(np.random.get_bit_generator()).__module__.startswith("numpy")


# -- what goes unseen --------------------------------------------------------------------------------------------------

UNSEEN = {
    "map": lambda: list(map(random.getrandbits, [3])),
    "key": lambda: sorted([1, 2], key=random.getrandbits),
    "partial": lambda: functools.partial(random.random)(),
}


@pytest.mark.parametrize("name", UNSEEN)
def test_a_draw_that_c_code_makes_is_not_seen(name):
    """A limit, named in the module and in docs/data.md; a change here is good news for both."""
    assert waits_of(UNSEEN[name]) == []


def test_a_gpus_generator_waits_for_its_turn_too(monkeypatch):
    gpus, own = torch.Generator(), torch.Generator()
    monkeypatch.setattr(torch.cuda, "default_generators", (gpus,))
    waited = []
    with watched(waited.append):
        own.manual_seed(3)
        torch.rand(2, generator=own)
        assert not waited
        gpus.manual_seed(3)
        torch.rand(2, generator=gpus)
    assert waited == [TORCH, TORCH]
