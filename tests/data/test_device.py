"""Batches reach the device whole and in time, over a device that does its work late and gives memory out anew at once.

`Fake` has a stream that copies and a stream that computes. What the host issues is kept, and executed when the test's
schedule says so: each time the next operation of one stream or of the other, if the events that it waits for have
happened. Operations know memory by its address and keep nothing alive. Memory that is let go of is given out again as
PyTorch's caching allocators do: the host's behind the copies that read it, the device's behind what was issued on the
streams that it was said to be used by. A copy and a step take two operations each, so that others can come in between.
"""

import collections
import ctypes
import itertools
import threading
import time
import weakref
from collections import OrderedDict, namedtuple
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_queue import LONG, Failure, FakePace, Numbers, queue_of, settle, shown

from lightning_sink.data import lookahead
from lightning_sink.data.device import Device
from lightning_sink.data.listed_texts import Looked, Parts
from lightning_sink.data.options import QueueOptions
from lightning_sink.data.streams import Streams

pytestmark = pytest.mark.usefixtures("unhurried")

COPY, COMPUTE = 0, 1
TORN = 0xEE
"""What is in memory while a copy is under way."""

ALIGNMENT = 256


class Event:
    """Happens when its stream comes to where it was recorded."""

    def __init__(self):
        self.happened = False


class Block:
    """A piece of memory that belongs to an allocator for good."""

    def __init__(self, nbytes):
        self.backing = (ctypes.c_char * (nbytes + ALIGNMENT))()
        self.offset = -ctypes.addressof(self.backing) % ALIGNMENT
        self.nbytes, self.address = nbytes, ctypes.addressof(self.backing) + self.offset
        self.is_used, self.streams, self.until = False, set(), []


class Allocator:
    """Gives memory out; the block that was let go of last first, if what still uses it has ended."""

    def __init__(self, fake):
        self.fake, self.blocks, self.given = fake, [], 0

    def tensor(self, like):
        """Returns a tensor that is laid out like another."""
        dense = torch.empty_like(like, device="meta")
        block = self._block(max(1, dense.nbytes))
        handle = (ctypes.c_char * block.nbytes).from_buffer(block.backing, block.offset)
        weakref.finalize(handle, self._let_go, block)  # the storage alone keeps it
        storage = torch.frombuffer(handle, dtype=torch.uint8).untyped_storage()
        self.given += 1
        return torch.empty(0, dtype=like.dtype).set_(storage, 0, dense.shape, dense.stride())

    def of(self, tensor):
        """Returns the block in which a tensor lies."""
        place = tensor.untyped_storage().data_ptr()
        return next(block for block in self.blocks if block.address == place)

    def _block(self, nbytes):
        for index, block in enumerate(reversed(self.blocks)):
            if not block.is_used and block.nbytes >= nbytes and all(event.happened for event in block.until):
                self.blocks.append(self.blocks.pop(-1 - index))
                break
        else:
            self.blocks.append(Block(nbytes))
        block = self.blocks[-1]
        block.is_used, block.streams, block.until = True, set(), []
        return block

    def _let_go(self, block):
        with self.fake.lock:
            block.until += [self.fake.record(stream) for stream in block.streams]
            block.is_used = False


class Fake(Streams):
    """A device that runs behind its host.

    Args:
        schedule: At each chance, the stream that goes on if it can; -1 for neither.
        waits: Whether what arrives is waited for.
        records: Whether memory is kept from others until the stream that uses it has done so.
    """

    def __init__(self, schedule=(-1,), waits=True, records=True):
        self.schedule = itertools.cycle(schedule)
        self.waits, self.records = waits, records
        self.streams = ([], [])
        self.violations, self.copies, self.sends, self.fails = [], 0, 0, lambda: None
        self.lock = threading.RLock()  # the host's two threads; a stream itself is none
        self.host, self.device = Allocator(self), Allocator(self)

    def pinned(self, like):
        with self.lock:
            return self.host.tensor(like)

    def send(self, tensors):
        with self.lock:
            self.fails()
            self.sends += 1
            sent = [self._copy(tensor) for tensor in tensors]
            event = self.record(COPY)
        self.chance()
        return sent, event

    def _copy(self, source):
        self.copies += 1
        target, size = self.device.tensor(source), source.nbytes
        there, here = target.data_ptr(), source.data_ptr()
        self._issue(COPY, lambda: ctypes.memset(there, TORN, size))
        self._issue(COPY, lambda: ctypes.memmove(there, here, size))
        self.host.of(source).until.append(self.record(COPY))
        return target

    def arrive(self, tensors, event):
        with self.lock:
            if self.waits:
                self._issue(COMPUTE, lambda: None, event)
            for tensor in tensors if self.records else ():
                self.device.of(tensor).streams.add(COMPUTE)
        self.chance()

    def record(self, stream):
        event = Event()
        self._issue(stream, lambda: setattr(event, "happened", True))
        return event

    def _issue(self, stream, action, after=None):
        self.streams[stream].append((action, after))

    def chance(self):
        """Executes none, or some, of what could be executed now."""
        with self.lock:
            for wish in itertools.islice(self.schedule, 3):
                if wish >= 0:
                    self._execute(wish)

    def _execute(self, stream):
        if not self.streams[stream]:
            return False
        action, after = self.streams[stream][0]
        if after is not None and not after.happened:
            return False
        del self.streams[stream][0]
        action()
        return True

    def finish(self):
        """Executes everything that is left, in the order that the schedule wishes."""
        with self.lock:
            for wish in itertools.chain.from_iterable(itertools.repeat([0, 1, 1, 0])):
                if not any(self.streams):
                    return
                if not (self._execute(wish) or self._execute(1 - wish)):
                    self.violations.append("both streams wait for each other")
                    return

    def step(self, tensors, expected):
        """What a training does with a batch: reads it, late; it keeps nothing."""
        places = [(tensor.data_ptr(), tensor.nbytes) for tensor in tensors]

        def read():
            found = [ctypes.string_at(place, nbytes) for place, nbytes in places if nbytes]
            if found != [content for content in expected if content]:
                self.violations.append(f"{found} was read where {expected} was expected")

        for _ in range(2):
            with self.lock:
                self._issue(COMPUTE, read)
            self.chance()


def memory(tensor):
    """Returns the bytes of a tensor as `Tensor.to` lays them."""
    dense = torch.empty_like(tensor).copy_(tensor)
    return ctypes.string_at(dense.data_ptr(), dense.nbytes) if dense.nbytes else b""


class Batches(Numbers):
    """Gives batches that are told from each other by their number, some of them in the same memory again and again.

    Args:
        lengths: As for `Numbers`.
        shapes: Of the batches in turn, and whether they are transposed.
        failures: Numbers that cannot be fetched.
        refills: Whether there is one tensor for all batches of a shape.
        groups: As for `Numbers`; of those that do not lie in one piece none is given with others.
    """

    draws_nothing, gives_copies = True, False

    def __init__(self, lengths, shapes=((3, 2, False),), failures=(), refills=True, groups=(1,)):
        super().__init__(lengths, self._fail, groups=(1,) if any(shape[2] for shape in shapes) else groups)
        self.shapes, self.failures, self.buffers = shapes, failures, {}
        self.refills = refills

    def _fail(self, number):
        if number in self.failures:
            raise Failure(number)

    def make(self, number):
        rows, columns, transposed = self.shapes[number % len(self.shapes)]
        data = torch.arange(rows * columns, dtype=torch.float32).reshape(rows, columns) + 1000 * number
        return data.T if transposed else data, torch.tensor([number] * rows)

    def expected(self, number):
        return [memory(tensor) for tensor in self.make(number)]

    def fetch(self, in_turn):
        _, number = super().fetch(in_turn)
        batch = self.make(number)
        if self.refills:
            kept = self.buffers.setdefault(self.shapes[number % len(self.shapes)], batch)
            for old, new in zip(kept, batch, strict=True):
                old.copy_(new)
            batch = kept
        return batch, number


def train(fake, source, sinks, ways, patience, options):
    """Trains as an engine does, some batches one by one and some in a row; returns those that were issued, in order."""
    pace, issued = FakePace(), []
    ways, patience = itertools.cycle(ways), itertools.cycle(patience)

    def step(found):
        batch, number = found
        issued.append(number)
        fake.step(batch, source.expected(number))

    with queue_of(source, pace, options, device=Device(fake)) as queue:
        for takes, ahead, how in sinks:
            pace.ahead = next(ways)
            queue.expect(takes * (1 + 2 * ahead))
            for _ in range(takes):
                pace.ahead = next(ways)
                if next(patience):
                    settle(queue)  # a slow training: all that may be fetched is
                try:
                    step(queue.take())
                except Failure:
                    continue
                except StopIteration:
                    break
                parts = [queue.look_ahead(ahead)]
                if parts[0] is not None:
                    parts.append(queue.look_ahead(ahead, behind=len(parts[0])))
                for part in parts:
                    for found in shown(part):
                        step(found)
                for part in filter(None, parts):
                    queue.skip(len(part))
            queue.rest()
            if how == "restart":
                queue.pause()
                queue.restart(source)
        queue.restart()
        assert not source.violations
    fake.finish()
    return issued


schedules = st.lists(st.integers(-1, 1), min_size=1, max_size=40)
shapes = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 3), st.booleans()), min_size=1, max_size=4)
sinks = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 4), st.sampled_from(["rest", "rest", "restart"])),
    min_size=1,
    max_size=5,
)


@given(
    schedule=schedules,
    lengths=st.lists(st.integers(1, 9), min_size=2, max_size=6) | st.just([60]),
    shapes=shapes,
    failures=st.sets(st.integers(0, 30), max_size=3),
    refills=st.booleans(),
    sinks=sinks,
    ways=st.lists(st.booleans(), min_size=1, max_size=9),
    patience=st.lists(st.booleans(), min_size=1, max_size=5),
    size=st.integers(0, 4),
    timeout=st.sampled_from([None, LONG]),
    groups=st.lists(st.integers(1, 4), min_size=1, max_size=4),
)
@settings(max_examples=150)
def test_every_step_reads_its_own_batch(
    schedule, lengths, shapes, failures, refills, sinks, ways, patience, size, timeout, groups
):
    fake, source = Fake(schedule), Batches(lengths, shapes, failures, refills, groups)
    issued = train(fake, source, sinks, ways, patience, QueueOptions(buffer_size=size, timeout=timeout))
    assert fake.violations == []
    assert issued == sorted(set(issued) - failures)
    if not any(how == "restart" for *_, how in sinks):  # which forgets what was fetched
        assert set(range(max(issued, default=0))) <= set(issued) | failures


PLENTY = [(9, 3, "rest")]


def violations(fake, ways=(False,), patience=(True,), size=4, groups=(1,)):
    source = Batches([200], shapes=[(2, 3, False)], groups=groups)
    issued = train(fake, source, PLENTY * 2, ways, patience, QueueOptions(buffer_size=size))
    assert issued == list(range(len(issued)))
    assert len(issued) >= 18
    return fake.violations


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("schedule", [[COPY], [COMPUTE], [-1], [COMPUTE, COPY, -1]], ids=str)
def test_a_schedule_by_itself_does_no_harm(schedule, ahead):
    assert not violations(Fake(schedule), [ahead])


@pytest.mark.parametrize("ahead", [False, True])
def test_control_a_batch_that_is_not_waited_for_is_read_too_early(ahead):
    assert violations(Fake([COMPUTE], waits=False), [ahead])


@pytest.mark.parametrize("ahead", [False, True])
def test_control_memory_that_is_given_out_too_early_is_overwritten(ahead):
    assert violations(Fake([COPY], records=False), [ahead])


def test_control_the_hosts_memory_that_is_given_out_too_early_is_sent():
    fake = Fake([COMPUTE])
    with mock.patch.object(Block, "until", property(lambda block: [], lambda block, events: None), create=True):
        assert violations(fake)


# -- what is sent -----------------------------------------------------------------------------------------------------

Pair = namedtuple("Pair", "x y")
X, Y = torch.arange(6.0).reshape(2, 3), torch.tensor([3, 4])

SENT = {
    "tuple": lambda: (X, Y),
    "list": lambda: [X, Y],
    "dict": lambda: {"y": Y, "x": X},
    "one": lambda: X,
    "nested": lambda: {"a": (X, [Y, 3]), "b": Pair("text", Y), "c": None, "d": OrderedDict(z=X, a=2.5)},
    "transposed": lambda: (X.T, Y),
    "all but one": lambda: (X[:, :-1], X[:, 1:]),
    "a part of nothing": lambda: (torch.empty(3, 0, 2)[:, :, 1:], X[:, 1:]),
    "a row of a larger one": lambda: (X[1], X[:, 1]),
    "expanded": lambda: (Y.expand(3, 2),),
    "channels last": lambda: (torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last),),
    "no dimension": lambda: (torch.tensor(3.0), Y),
    "no number": lambda: (torch.empty(0, 3), torch.empty(2, 0)),
    "one that is empty": lambda: (torch.empty(0), Y),
    "types": lambda: tuple(torch.ones(3).to(each) for each in (torch.bool, torch.int8, torch.half, torch.complex128)),
    "twice the same": lambda: (X, X),
    "a view besides": lambda: (X, X[0]),
}


def moved(batch):
    """What plain Lightning makes of a batch: each tensor by itself."""
    return torch.utils._pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.detach().clone(), batch)


def same(one, other):
    leaves, spec = torch.utils._pytree.tree_flatten(one)
    others, other_spec = torch.utils._pytree.tree_flatten(other)
    assert spec == other_spec
    for a, b in zip(leaves, others, strict=True):
        assert type(a) is type(b)
        if isinstance(a, torch.Tensor):
            assert (a.dtype, a.stride()) == (b.dtype, b.stride())
            assert torch.equal(a, b)
        else:
            assert a == b


def alone(fake, batch):
    return Device(fake).send(batch)


def with_others(fake, batch):
    load = Device(fake).load((batch, 0, 0), 3, 1 << 20, Looked())
    if load is None:
        return batch
    assert load.add((batch, 1, 0))
    load.send()
    return Sent(load, 1)


def test_a_tensor_without_memory_is_an_error():
    tensor = torch.ones(4)
    tensor.untyped_storage().resize_(0)
    with pytest.raises(RuntimeError, match="has no memory"):
        Device(Fake()).send({"x": tensor, "y": torch.ones(4)})


class Sent:
    """A batch among others, to be taken as one that was sent by itself."""

    def __init__(self, load, number):
        self.take = lambda: load.batch(number)


WAYS = pytest.mark.parametrize("send", [alone, with_others])


@WAYS
@pytest.mark.parametrize("kind", SENT)
def test_a_batch_arrives_as_if_each_tensor_was_moved(send, kind):
    fake, batch = Fake([COPY]), SENT[kind]()
    arrived = send(fake, batch).take()
    fake.finish()
    same(arrived, moved(batch))
    pointers = [leaf.data_ptr() for leaf in torch.utils._pytree.tree_leaves(arrived) if isinstance(leaf, torch.Tensor)]
    filled = [pointer for pointer in pointers if pointer]
    assert len({*filled}) == len(filled)  # a tensor that comes twice is two, as `Tensor.to` makes them


OTHERS = {
    "another type": (X.to(torch.int32), Y),
    "another shape": (X.reshape(3, 2), Y),
    "laid otherwise": (X.reshape(3, 2).T, Y),
    "with gaps": (torch.rand(4, 3)[::2], Y),
    "one more": (X, Y, Y),
}


def nothing_looked_at():
    looked = Looked()
    looked.see(Parts(frozenset()))
    return looked


def loaded(fake, given, room):
    """Sends batches as the queue does; returns them as they arrive."""
    loads = []
    for number, batch in enumerate(given):
        if not (loads and loads[-1].add((batch, number, 0))):
            if loads:
                loads[-1].send()
            loads.append(Device(fake).load((batch, number, 0), max(16, len(given)), room, nothing_looked_at()))
    loads[-1].send()
    return [load.batch(number) for load in loads for number in range(len(load))]


def assert_loads_send(given, sends):
    """The batches arrive as if each was moved by itself, in so many goes."""
    fake = Fake([COPY])
    arrived = loaded(fake, given, 1 << 20)
    fake.finish()
    for found, batch in zip(arrived, given, strict=True):
        same(found, moved(batch))
    assert fake.sends == sends


@pytest.mark.parametrize("kind", OTHERS)
def test_batches_that_are_not_alike_are_sent_apart(kind):
    given = [(X, Y), (X + 1, Y), OTHERS[kind], OTHERS[kind], (X, Y)]
    assert_loads_send(given, sends=3)


def test_texts_at_which_no_step_looks_may_be_others():
    """Each batch arrives with its own."""
    given = [{"x": X + number, "names": [f"{number}.png", "b"], "y": Y} for number in range(4)]
    assert_loads_send(given, sends=1)
    assert_loads_send([*given, {"x": X, "names": ["a", "b", "c"], "y": Y}], sends=2)
    assert_loads_send([(("a",), X, (Y, ["b"])), (("c",), X, (Y, ["d"])), (("e",), X, (Y, ["f", "g"]))], sends=2)


def test_texts_at_which_steps_look_are_compared():
    looked = nothing_looked_at()
    load = Device(Fake([COPY])).load(((X, ["a"], ["b"]), 0, 0), 9, 1 << 20, looked)
    assert load.add(((X, ["c"], ["d"]), 1, 0))
    assert load.are_alike
    looked.see(Parts(frozenset([(2,)])))
    assert not load.are_alike
    load = Device(Fake([COPY])).load(((X, ["a"], ["b"]), 0, 0), 9, 1 << 20, looked)
    assert load.add(((X, ["c"], ["b"]), 1, 0))
    assert not load.add(((X, ["c"], ["d"]), 1, 0))


def test_texts_of_a_list_that_is_filled_again_are_those_of_their_batch():
    fake, names, arrived = Fake([COPY]), ["a"], []
    load = Device(fake).load(((X, names), 0, 0), 9, 1 << 20, nothing_looked_at())
    names[0] = "b"
    assert load.add(((X, names), 1, 0))
    names[0] = "c"
    load.send()
    arrived = [load.batch(number)[1] for number in range(2)]
    assert arrived == [["a"], ["b"]]


def test_batches_with_gaps_are_sent_in_one_go():
    rows = torch.arange(1350.0).reshape(5, 27, 10)
    given = [(rows[:, ::3][:, :9, number], rows[:, :, number].T) for number in range(10)]
    assert_loads_send(given, sends=1)


ALIKE = {
    "conjugate": lambda x: torch.complex(x, x).conj(),
    "negative": lambda x: torch.complex(x, x).conj().imag,
}


@pytest.mark.parametrize("kind", ALIKE)
def test_what_only_says_that_it_is_another_is_not_sent_as_those_before_it(kind):
    """Its shape, type and strides are theirs, its memory holds something else."""
    lazy = ALIKE[kind](X)
    plain = torch.empty_like(lazy).set_(
        lazy.resolve_conj().resolve_neg().untyped_storage(), 0, lazy.shape, lazy.stride()
    )
    load = Device(Fake()).load(((plain, Y), 0, 0), 3, 1 << 20, Looked())
    assert load.add(((plain, Y), 1, 0))
    assert not load.add(((lazy, Y), 2, 0))
    assert len(load) == 2


def test_a_copy_is_no_larger_than_there_is_room():
    fake = Fake([COPY])
    arrived = loaded(fake, [(torch.full((256,), float(number)),) for number in range(7)], 3000)
    fake.finish()
    assert [float(tensor[-1]) for (tensor,) in arrived] == [*range(7)]
    assert fake.copies == 4  # two batches of a kilobyte in each
    assert {block.nbytes for block in fake.host.blocks} == {2048}
    assert {block.nbytes for block in fake.device.blocks} == {1024, 2048}


def test_a_batch_larger_than_the_room_is_sent_by_itself():
    fake = Fake([COPY])
    given = [(X,), (torch.rand(1000),), (X,)]
    for found, batch in zip(loaded(fake, given, 100), given, strict=True):
        same(found, moved(batch))
    assert fake.copies == 3


@WAYS
def test_what_was_sent_may_be_filled_again(send):
    fake = Fake()
    batch = (X.T.clone(), Y.clone())
    item = send(fake, batch)
    before = moved(batch)
    for tensor in batch:
        tensor.zero_()
    arrived = item.take()
    fake.finish()
    same(arrived, before)


@WAYS
def test_each_tensor_counts_its_own_writes(send):
    fake = Fake([COPY])
    x, y = send(fake, (X, Y)).take()
    fake.finish()
    weight = torch.ones(3, requires_grad=True)
    loss = (weight * x).sum()
    y.zero_()
    loss.backward()
    assert torch.equal(weight.grad, X.sum(0))
    assert not x._is_view()


def test_a_label_that_is_kept_keeps_nothing_else():
    fake = Fake([COPY])
    kept = [Device(fake).send((torch.rand(1000), Y)).take()[1] for _ in range(20)]
    large = [block for block in fake.device.blocks if block.nbytes >= 4000]
    fake.finish()
    assert len(kept) == 20
    assert not any(block.is_used for block in large)


class Odd:
    pass


class Bag:
    """Known to PyTorch by one of the two tensors that it holds."""

    def __init__(self, x):
        self.x, self.scale = x, torch.nn.Parameter(torch.ones(2))


torch.utils._pytree.register_pytree_node(Bag, lambda bag: ([bag.x], None), lambda parts, _: Bag(*parts))


@pytest.mark.parametrize(
    "make", [lambda: (X, collections.deque([Y])), lambda: Bag(X), lambda: (X, collections.deque([X]))]
)
def test_what_only_one_way_through_a_batch_looks_into_is_not_sent_with_others(make):
    assert Device(Fake()).load((make(), 0, 0), 3, 1 << 20, Looked()) is None


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta:UserWarning")
@pytest.mark.parametrize("make", [lambda: torch.nested.nested_tensor([X, X[:1]]), X.to_sparse_csr, X.to_sparse])
def test_what_has_no_strides_is_not_taken_for_those_before_it(make):
    load = Device(Fake()).load(((X, Y), 0, 0), 3, 1 << 20, Looked())
    assert not load.add(((make(), Y), 1, 0))
    assert len(load) == 1


KEPT = {
    "what has a `to` of its own": lambda: (torch.nn.utils.rnn.pack_sequence([X, X[:1]]), Y),
    "an object": lambda: (X, Odd()),
    "no tensor": lambda: (1, "a"),
    "nothing": lambda: (),
    "a parameter": lambda: (torch.nn.Parameter(X), Y),
    "asks for gradients": lambda: (X.clone().requires_grad_(), Y),
    "sparse": lambda: (X.to_sparse(), Y),
    "elsewhere": lambda: (X.to("meta"), Y),
    "negative": lambda: (torch.ones(2, dtype=torch.complex64).conj().imag, Y),
    "conjugate": lambda: (torch.ones(2, dtype=torch.complex64).conj(), Y),
    "nested": lambda: (torch.nested.nested_tensor([X, X[0:1]]), Y),
    "quantized": lambda: (torch.quantize_per_tensor(X, 0.1, 0, torch.qint8), Y),
}


@WAYS
@pytest.mark.parametrize("kind", KEPT)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.filterwarnings("ignore:.*quantize_per_tensor.*")
def test_what_nobody_knows_how_to_move_is_given_as_it_is(send, kind):
    fake, batch = Fake([COPY]), KEPT[kind]()
    assert send(fake, batch) is batch


def test_the_next_batch_is_not_fetched_over_one_that_was_not_sent():
    class Kept(Batches):
        def fetch(self, in_turn):
            batch, number = super().fetch(in_turn)
            return (*batch, Odd()), number

    source = Kept([500], refills=True)
    with queue_of(source, FakePace(False), QueueOptions(buffer_size=4), device=Device(Fake())) as queue:
        queue.expect(400)
        for number in range(100):
            (x, _, _), found = queue.take()
            assert found == number
            assert x[0, 0] == 1000 * number
            found = shown(queue.look_ahead(3))
            assert len(found) <= 1  # its memory is filled again by the next one
            assert all(x[0, 0] == 1000 * number + 1000 for (x, _, _), _ in found)


def test_some_batches_are_sent_and_some_are_not():
    class Mixed(Batches):
        def fetch(self, in_turn):
            batch, number = super().fetch(in_turn)
            return (*batch, Odd()) if number % 3 == 1 else batch, number

    fake, seen = Fake([COPY]), []
    with queue_of(Mixed([500]), FakePace(False), QueueOptions(buffer_size=8), device=Device(fake)) as queue:
        queue.expect(400)
        while len(seen) < 200:
            for get in (lambda: [queue.take()], lambda: shown(queue.look_ahead(6))):
                found = get()
                fake.finish()
                for (x, *_), number in found:
                    seen.append(number)
                    assert x[0, 0] == 1000 * number
            if found:
                queue.skip(len(found))
    assert seen == [*range(len(seen))]


# -- how it is sent ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("groups", [[1], [4], [1, 3, 4, 16]])
def test_small_batches_are_sent_by_one_copy_for_each_tensor_of_theirs(groups):
    fake, source = Fake([COPY]), Batches([500], groups=groups)
    with queue_of(source, FakePace(False), QueueOptions(buffer_size=16), device=Device(fake)) as queue:
        queue.expect(400)
        queue.take()
        copies = fake.copies
        for _ in range(10):
            assert len(queue.look_ahead(16)) == 16
            queue.skip(16)
        assert fake.copies == copies + 10 * 2


@pytest.mark.parametrize("groups", [[1], [16], [5, 16, 3, 16, 16]], ids=str)
def test_rows_are_as_long_as_a_copy_wherever_those_before_them_end(monkeypatch, groups):
    """A batch takes 512 bytes there: a copy takes 32. Remainders of copies would make short rows of long ones."""
    monkeypatch.setattr(lookahead, "_COPY", 33 * 512)
    fake, rows, behind = Fake([COPY]), [], 0
    source = Batches([500], groups=groups)
    with queue_of(source, FakePace(False), QueueOptions(buffer_size=100), device=Device(fake)) as queue:
        queue.expect(400)
        queue.take()
        for most in (8, 32, 100, 36, 77, 100, 100):  # the next one is looked for while the one before it is trained
            rows.append(len(queue.look_ahead(most, behind)))
            if behind:
                queue.skip(behind)
            behind = rows[-1]
        assert source.begun == 1 + sum(rows)
    assert rows == [8, *[32] * 6]


def test_the_pace_is_told_what_it_takes_to_send_a_batch(monkeypatch):
    fake, pace, now = Fake([COPY]), FakePace(False), [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    send, fetch = Device.send, Batches.fetch

    def spend(seconds, function):
        def spending(*arguments):
            now[0] += seconds
            return function(*arguments)

        return spending

    monkeypatch.setattr(Device, "send", spend(5.0, send))
    monkeypatch.setattr(Batches, "fetch", spend(0.25, fetch))
    with queue_of(Batches([500]), pace, QueueOptions(buffer_size=4), device=Device(fake)) as queue:
        queue.expect(40)
        for _ in range(20):
            queue.take()
            now[0] += 1.0
    assert pace.notes == [(5.25, 6.25, 5.0)] * 19


def test_memory_is_given_out_again():
    fake, given = Fake([COPY, COMPUTE]), []
    with queue_of(Batches([10_000]), FakePace(False), QueueOptions(buffer_size=4), device=Device(fake)) as queue:
        for _ in range(200):
            queue.expect(9)
            for _ in range(2):
                fake.step(queue.take()[0], [])
                queue.skip(len(queue.look_ahead(3)))
            queue.rest()
            fake.finish()
            fake.violations.clear()
            given.append((len(fake.host.blocks), len(fake.device.blocks)))
    assert given[20:] == [given[20]] * 180
    assert fake.device.given > 1000


@pytest.mark.parametrize("at", range(1, 7))
@pytest.mark.parametrize(("ahead", "groups"), [(False, [1]), (False, [2, 3]), (True, [1])])
def test_a_copy_that_fails_is_an_error_in_its_turn(at, ahead, groups):
    fake, issued, sent = Fake([COPY]), [], itertools.count(1)

    def fails():
        if next(sent) == at:
            raise Failure("out of memory")

    fake.fails = fails
    source = Batches([500], groups=groups)
    with queue_of(source, FakePace(ahead), QueueOptions(buffer_size=3), device=Device(fake)) as queue:
        queue.expect(60)

        def go_on():
            while len(issued) < 40:
                issued.append(queue.take()[1])
                settle(queue)
                part = queue.look_ahead(3)
                if part is not None:
                    issued.extend(part.notes)
                    queue.skip(len(part))

        with pytest.raises(Failure, match="memory") as caught:
            go_on()
        assert issued == list(range(len(issued)))
        assert f"while fetching batch number {len(issued)}" in caught.value.__notes__[0]
        assert queue._producer.held_bytes == 0
        fake.fails = lambda: None
        later = queue.take()[1]  # what failed is not given a second time, and nothing is out of order
        assert later >= len(issued)


def test_a_copy_that_cannot_take_all_is_cut_where_steps_in_a_row_are():
    """A batch takes 256 bytes there."""
    for room, batches, expected in ((256 * 41, 100, 32), (256 * 41, 20, 20), (256 * 15, 100, 15), (256 * 16, 100, 16)):
        load = Device(Fake()).load(((torch.zeros(8),), 0, 0), batches, room, Looked())
        while load.add(((torch.zeros(8),), 0, 0)):
            pass
        assert len(load) == expected


def test_a_load_that_was_sent_takes_no_more():
    load = Device(Fake()).load(((X,), 0, 0), 3, 1000, Looked())
    load.send()
    assert not load.add(((X,), 1, 0))


def test_what_arrives_must_have_been_sent():
    load = Device(Fake()).load(((X,), 0, 0), 1, 100, Looked())
    with pytest.raises(AssertionError, match="sent"):
        load.batch(0)


def test_streams_have_to_say_how():
    with pytest.raises(TypeError, match="abstract"):
        Streams()
