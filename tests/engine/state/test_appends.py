"""What programs append and add."""

from dataclasses import dataclass

import torch
from test_collected import Holder, learned

from lightning_sink.engine.numbers.guards import Uses
from lightning_sink.engine.numbers.number import Number
from lightning_sink.engine.numbers.taken import KINDS, Taken
from lightning_sink.engine.state.appends import Appends
from lightning_sink.engine.state.collected import Collected


def appended_by(holder, item):
    lists = learned(holder)
    with lists.watched(lambda text: None) as watched:
        holder.kept.append(item)
    appends = Appends([watched.taken])
    return appends, appends.tensors


def test_programs_append_copies_in_the_structure_that_was_recorded():
    holder = Holder()
    appends, (first, second) = appended_by(holder, {"loss": torch.ones(()), "of": ("a", 1, [torch.zeros(1, 2)])})
    assert first.shape == ()
    assert second.shape == (1, 2)
    assert appends.names == ["0.kept", "0.kept"]
    given = torch.tensor(3.0), torch.tensor([[1.0, 2.0]])
    appends.append(given)
    given[0].zero_()
    assert holder.kept[1]["loss"].item() == 3.0
    assert holder.kept[1]["of"][:2] == ("a", 1)
    assert holder.kept[1]["of"][2][0].tolist() == [[1.0, 2.0]]


def test_a_row_appends_what_each_step_gave_in_its_shape():
    holder = Holder()
    appends, _ = appended_by(holder, torch.ones(1, 1))
    appends.append_row([torch.tensor([1.0, 2.0, 3.0])], 3)  # one element of each step: how rows keep them
    assert [item.tolist() for item in holder.kept] == [[[1.0]], [[1.0]], [[2.0]], [[3.0]]]
    assert len({item.untyped_storage().data_ptr() for item in holder.kept}) == 4


def test_rows_append_numbers_too():
    holder = Holder()
    appends, tensors = appended_by(holder, 7)
    assert not tensors
    appends.append_row([], 3)
    assert holder.kept == [7, 7, 7, 7]


class Sums:
    def __init__(self):
        self.total, self.outs = 0, []

    def step(self, loss):
        self.total += 1
        self.total += loss
        self.outs.append({"loss": loss})


def summed_by(holder, loss):
    collected = Collected()
    collected.learn([("", holder)], [holder.outs], {(id(vars(holder)), "total")}, [Sums.step.__code__])
    with collected.watched(lambda text: None) as watched:
        holder.step(loss)
    appends = Appends([watched.taken])
    return appends, appends.tensors


def item(value):
    uses = Uses(lambda what: None, lambda what: None)
    whole = torch.tensor(value) if type(value) is int else None
    return Number(torch.tensor(float(value), dtype=torch.float64), value, uses, (1, "a value of a tensor"), whole=whole)


def test_numbers_that_a_step_gives_are_tensors_of_its_program():
    holder = Sums()
    appends, tensors = summed_by(holder, item(0.5))
    assert [float(tensor) for tensor in tensors] == [0.5, 0.5]
    assert (holder.total, holder.outs) == (1.5, [{"loss": 0.5}])
    assert type(holder.outs[0]["loss"]) is float
    assert appends.names == ["total", "outs"]
    appends.append([torch.tensor(0.25, dtype=torch.float64), torch.tensor(0.75, dtype=torch.float64)])
    assert (holder.total, holder.outs) == (2.75, [{"loss": 0.5}, {"loss": 0.75}])
    assert appends.last()[0] is None  # lost in the sum
    assert float(appends.last()[1]) == 0.75


def test_a_row_adds_one_after_the_other():
    """As Python does it: the sum of floats depends on the order."""
    losses = torch.tensor([0.1, 1e16, -1e16, 0.2], dtype=torch.float64)
    holder, plain = Sums(), Sums()
    appends, _ = summed_by(holder, item(0.1))
    appends.append_row([losses, losses], 4)
    for loss in [0.1, *losses.tolist()]:
        plain.step(loss)
    assert vars(holder) == vars(plain)


def test_whole_numbers_stay_whole():
    holder = Sums()
    appends, _ = summed_by(holder, item(3))
    large = (1 << 60) + 1  # which float64 has not
    appends.append_row([torch.tensor([4, large])] * 2, 2)
    assert (holder.total, type(holder.total)) == (1 + 3 + 1 + 4 + 1 + large, int)
    assert [out["loss"] for out in holder.outs] == [3, 4, large]


def test_what_is_computed_of_whole_numbers_is_no_part_of_a_program():
    holder = Sums()
    number = item(3)
    appends, tensors = summed_by(holder, number + number)
    assert not tensors
    assert holder.total == 7


def test_steps_that_append_other_things_are_told_apart():
    holder, loss = Holder(), torch.ones(())
    keys = [appended_by(holder, item)[0].key for item in (loss, loss + 1, [loss], {"a": loss}, 1, 1.0, True, (1, loss))]
    assert keys[0] == keys[1]
    assert len(set(keys)) == 7
    assert appended_by(Holder(), loss)[0].key != keys[0]


def test_objects_that_hold_tensors_are_no_programs():
    class Row:
        loss = torch.ones(())

    assert appended_by(Holder(), torch.ones(()))[0].problem is None
    assert "`Row` to `0.kept`" in appended_by(Holder(), [Row()])[0].problem


def test_the_last_ones_are_found_unless_somebody_took_them():
    holder = Holder()
    appends, _ = appended_by(holder, [torch.ones(()), 1])
    holder.kept.append([torch.tensor(5.0), 1])
    assert [tensor.item() for tensor in appends.last()] == [5.0]
    holder.kept.clear()
    assert appends.last() == []
    holder.kept = None
    assert appends.last() == []


def test_what_is_appended_behind_the_owners_turn_waits_for_that():
    first, second = Holder(), Holder()
    lists = learned(first, second)
    with lists.watched(lambda text: None) as early:
        first.kept.append(torch.ones(()))
    with lists.watched(lambda text: None) as late:
        second.kept.append(torch.ones(2))
        first.kept.append(7)
    appends, given = Appends([early.taken, late.taken]), [torch.tensor(3.0), torch.tensor([1.0, 2.0])]
    appends.append(given, late=False)
    assert (len(first.kept), len(second.kept)) == (3, 1)
    appends.append(given, late=True)
    assert first.kept[2:] == [torch.tensor(3.0), 7]
    assert second.kept[1].tolist() == [1.0, 2.0]
    assert [tensor.tolist() for tensor in appends.last()] == [3.0, [1.0, 2.0]]
    second.kept.pop()
    assert len(appends.last()) == 2  # the one before: nobody can tell
    second.kept.clear()
    assert appends.last() == []


def test_holders_that_compare_by_value_are_told_apart():
    @dataclass
    class Valued:
        kept: list

    one, other = Valued([]), Valued([])
    appends, _ = appended_by(one, torch.ones(()))
    assert appended_by(other, torch.ones(()))[0].key != appends.key
    assert len(appends.last()) == 1
    lists = Collected()
    lists.learn([("same.", one), ("same.", other)], [one.kept, other.kept])
    before = lists.state()
    other.kept = None
    assert lists.state() != before


def all_of(tensor):
    return Taken(tensor, tensor.tolist(), KINDS[torch.Tensor.tolist], Uses(print, print), "numbers")


def test_what_a_list_is_extended_with_stays_in_its_place_among_what_is_appended():
    holder = Holder()
    lists, first, second = learned(holder), torch.tensor([1, 2]), torch.tensor([[3.0], [4.0]])
    with lists.watched(lambda text: None) as watched:
        holder.kept.extend(all_of(first))
        holder.kept.append(all_of(second))
        holder.kept.append("end")
    appends = Appends([watched.taken])
    found = [1, 2, [[3.0], [4.0]], "end"]
    assert holder.kept == found
    for tensors in (appends.tensors, appends.last()):
        assert [tensor.tolist() for tensor in tensors] == [first.tolist(), second.tolist()]
        assert [tensor.dtype for tensor in tensors] == [first.dtype, second.dtype]
    appends.append((torch.tensor([5, 6]), torch.tensor([[7.0], [8.0]])))
    assert holder.kept[4:] == [5, 6, [[7.0], [8.0]], "end"]
    rows = torch.arange(4).reshape(2, 2), torch.arange(4.0).reshape(2, 2, 1)
    appends.append_row(rows, 2)
    assert holder.kept[8:] == [0, 1, [[0.0], [1.0]], "end", 2, 3, [[2.0], [3.0]], "end"]
