"""What is seen of the lists that steps append to, and what programs append."""

import gc
import heapq
from collections import UserList
from dataclasses import dataclass

import pytest
import torch

from lightning_sink.engine.appends import Appends, Lists, tensors_in

SAME_AS_ANY_OBJECTS = {"__new__", "__init__", "__getattribute__", "__hash__", "__doc__", "__class_getitem__"}
APPENDING = {"append", "extend", "__iadd__"}
ARGUMENTS = {
    **dict.fromkeys(["__add__", "__eq__", "__ge__", "__gt__", "__le__", "__lt__", "__ne__"], ([],)),
    **dict.fromkeys(["__contains__", "__delitem__", "__getitem__", "__imul__", "__mul__", "__rmul__"], (0,)),
    **dict.fromkeys(["count", "index", "remove", "__reduce_ex__"], (2,)),
    **dict.fromkeys(["__setitem__", "insert"], (0, 2)),
}


class Holder:
    def __init__(self, *items):
        self.kept = list(items)


def learned(*holders):
    lists = Lists()
    lists.learn([(f"{number}.", holder) for number, holder in enumerate(holders)], [holder.kept for holder in holders])
    return lists


@pytest.mark.parametrize("name", sorted({*vars(list)} - SAME_AS_ANY_OBJECTS - APPENDING | {"__reduce_ex__"}))
def test_whatever_else_is_done_with_a_list_is_told(name):
    holder, told = Holder(2, 2), []
    expected, held = [2, 2], holder.kept
    with learned(holder).watched(told.append):
        getattr(holder.kept, name)(*ARGUMENTS.get(name, ()))
    getattr(expected, name)(*ARGUMENTS.get(name, ()))
    assert told
    assert "`0.kept`" in told[0]
    assert holder.kept is held
    assert held == expected


@pytest.mark.parametrize(
    "read",
    [bool, len, list, tuple, sorted, str, repr, sum, any, lambda items: [*items], lambda items: 3 in items, min]
    + [lambda items: [0] + items, lambda items: f"{items}", reversed, enumerate, UserList, lambda items: items == []],
)
def test_functions_that_read_a_list_are_told(read):
    holder, told = Holder(1, 2), []
    with learned(holder).watched(told.append):
        read(holder.kept)
    assert told


def test_what_is_appended_is_seen_and_nothing_is_told():
    holder, told = Holder(1), []
    held = holder.kept
    with learned(holder).watched(told.append) as watched:
        holder.kept.append("a")
        holder.kept.extend(["b", "c"])
        holder.kept += ("d",)
    assert not told
    assert [(place.name, item) for place, item in watched.appended] == [("0.kept", item) for item in "abcd"]
    assert holder.kept is held
    assert held == [1, "a", "b", "c", "d"]


@pytest.mark.parametrize("by", ["another name", "a method"])
def test_what_is_appended_past_the_attribute_is_there_and_told(by):
    holder, told = Holder(1), []
    kept = holder.kept
    append = kept.append
    with learned(holder).watched(told.append):
        holder.kept.append(2)
        append(3) if by == "a method" else kept.append(3)
        assert len(kept) == 3
        holder.kept.append(4)
    assert told
    assert holder.kept is kept
    assert kept == [1, 2, 3, 4]


@pytest.mark.parametrize("append", [list.append, heapq.heappush], ids=["list", "heap"])
def test_c_code_that_appends_is_told(append):
    holder, told = Holder(1), []
    with learned(holder).watched(told.append):
        append(holder.kept, 2)
    assert told
    assert holder.kept == [1, 2]


def test_another_list_in_its_place_is_told():
    holder, told, before = Holder(1), [], []
    with learned(holder).watched(told.append):
        holder.kept.append(2)
        before.append(holder.kept)
        holder.kept = []
    assert "`0.kept`, in the place of which" in told[0]
    assert holder.kept == []
    assert type(before[0]) is list
    assert before[0] == [1, 2]


def test_a_list_that_is_extended_by_itself_ends():
    holder, told = Holder(1), []
    with learned(holder).watched(told.append):
        holder.kept += holder.kept
    assert told
    assert holder.kept == [1, 1]


def test_a_step_that_fails_leaves_the_list_itself():
    holder = Holder()
    held = holder.kept

    def fail():
        with learned(holder).watched(lambda text: None):
            holder.kept.append(1)
            raise KeyError

    pytest.raises(KeyError, fail)
    assert holder.kept is held
    assert held == [1]


def test_whoever_was_given_what_stands_for_the_list_gets_the_list():
    holder, elsewhere = Holder(), {}
    with learned(holder).watched(lambda text: None):
        elsewhere["kept"] = holder.kept
    gc.collect()
    assert elsewhere["kept"] is holder.kept
    assert type(holder.kept) is list


def test_only_attributes_that_hold_what_grew_are_learned():
    one, other = Holder(), Holder()
    lists = Lists()
    lists.learn([("", one), ("", other)], [one.kept])
    assert lists.names(one) == {"kept"}
    assert lists.names(other) == frozenset()
    lists.learn([("", one)], [one.kept])
    assert len(lists.places) == 1


def test_programs_take_for_granted_that_lists_are_there_and_which_are_one():
    one, other = Holder(), Holder()
    lists = learned(one, other)
    before = lists.state()
    one.kept.append(1)
    assert lists.state() == before
    other.kept = one.kept
    assert lists.state() != before
    other.kept = []
    assert lists.state() == before
    other.kept = None
    assert lists.state() != before
    del other.kept
    assert lists.state() != before


def appended_by(holder, item):
    lists = learned(holder)
    with lists.watched(lambda text: None) as watched:
        holder.kept.append(item)
    return Appends([watched.appended]), tensors_in(watched.appended)


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
    appends, given = Appends([early.appended, late.appended]), [torch.tensor(3.0), torch.tensor([1.0, 2.0])]
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
    lists = Lists()
    lists.learn([("same.", one), ("same.", other)], [one.kept, other.kept])
    before = lists.state()
    other.kept = None
    assert lists.state() != before
