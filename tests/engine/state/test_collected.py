"""What is seen of the lists that steps append to, and of the numbers to which they add."""

import gc
import heapq
from collections import UserList
from fractions import Fraction
from operator import attrgetter

import numpy as np
import pytest
import torch

from lightning_sink.engine.state import referrers
from lightning_sink.engine.state.collected import Collected

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
    lists = Collected()
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
    assert [(place.name, item) for place, item in watched.taken] == [("0.kept", item) for item in "abcd"]
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


@pytest.mark.parametrize("kept", [False, True])
def test_only_where_somebody_keeps_it_all_objects_are_searched(kept, monkeypatch):
    searched = []
    monkeypatch.setattr(referrers, "unfreeze", lambda: searched.append(True))  # what each search begins with
    holder, elsewhere = Holder(1), []
    with learned(holder).watched(pytest.fail):
        holder.kept.append(2)
        if kept:
            elsewhere.append((holder.kept,))
    assert type(holder.kept) is list
    assert bool(searched) == kept
    assert all(held is holder.kept for (held,) in elsewhere)


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
    lists = Collected()
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


class Sums:
    def __init__(self, total=1):
        self.total = total

    def adds(self, *values):
        for value in values:
            self.total += value

    def reads(self):
        return self.total


def learned_sums(holder, *functions, changed=None):
    collected = Collected()
    codes = [function.__code__ for function in functions or [Sums.adds]]
    changed = {(id(vars(holder)), "total")} if changed is None else changed
    collected.learn([("", holder)], [], changed, codes)
    return collected


def test_what_is_added_is_seen_and_nothing_is_told():
    holder, told = Sums(), []
    with learned_sums(holder).watched(told.append) as watched:
        holder.adds(2, 0.5)
    assert not told
    assert [(place.name, item) for place, item in watched.taken] == [("total", 2), ("total", 0.5)]
    assert holder.total == 3.5
    assert type(holder.total) is float
    assert "total" not in vars(Sums)


READS = {
    "by its name": lambda holder: holder.total,
    "by a text": lambda holder: getattr(holder, "total"),  # noqa: B009
    "by C code": attrgetter("total"),
    "by the class": lambda holder: object.__getattribute__(holder, "total"),
    "by a method": Sums.reads,
    "before it is added to": lambda holder: (getattr(holder, NAME), holder.adds(1))[0],
    "in the line that adds": lambda holder: adds_what_it_reads(holder),
}
NAME = "total"


def adds_what_it_reads(holder):
    holder.total += getattr(holder, NAME)
    return 1


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_whoever_reads_a_sum_is_told_and_gets_the_number(read):
    holder, told = Sums(), []
    with learned_sums(holder).watched(told.append):
        found = read(holder)
        held = [found]
    assert told
    assert "`total`, which it reads, too" in told[0]
    assert held == [1]
    assert type(held[0]) is int


@pytest.mark.parametrize("added", [True, torch.ones(()), np.float32(2), Fraction(1, 2), 1j])
def test_what_is_no_plain_number_is_told(added):
    holder, plain, told = Sums(), Sums(), []
    with learned_sums(holder).watched(told.append):
        holder.adds(added)
    plain.adds(added)
    assert told
    assert type(holder.total) is type(plain.total)
    assert holder.total == plain.total


def test_another_number_in_its_place_is_told():
    holder, told = Sums(), []
    with learned_sums(holder).watched(told.append):
        holder.total = 5
    assert "`total`, in the place of which" in told[0]
    assert holder.total == 5


def test_a_number_that_is_set_past_the_attribute_is_told():
    holder, told = Sums(), []
    with learned_sums(holder).watched(told.append):
        holder.adds(1)
        vars(holder)["total"] = 9
    assert "`total`, in the place of which" in told[0]
    assert holder.total == 9


def test_code_that_asks_for_all_attributes_is_told():
    holder, told = Sums(), []
    with learned_sums(holder).watched(told.append) as watched:
        watched.check([Sums.adds.__code__])
        assert not told
        watched.check([(lambda: vars(holder)).__code__])
    assert told


def test_names_that_are_left_out_are_none_and_are_forgotten():
    holder = Sums()
    collected = learned_sums(holder)
    collected.leave_out(["total"])
    assert collected.names(holder) == frozenset()
    collected.learn([("", holder)], [], {(id(vars(holder)), "total")}, [Sums.adds.__code__])
    assert collected.names(holder) == frozenset()


def test_only_what_the_step_adds_to_is_a_sum():
    holder = Sums()
    assert learned_sums(holder).names(holder) == {"total"}
    assert learned_sums(holder, Sums.adds, Sums.reads).names(holder) == frozenset()
    assert learned_sums(holder, changed={(id(vars(holder)), "other")}).names(holder) == frozenset()
    assert learned_sums(holder, changed={(0, "total")}).names(holder) == frozenset()


def test_programs_take_for_granted_that_a_sum_is_a_number():
    holder = Sums()
    collected = learned_sums(holder)
    before = collected.state()
    holder.total = 2.5
    assert collected.state() == before
    holder.total = None
    assert collected.state() != before


class WithSetter(Sums):
    def __setattr__(self, name, value):
        super().__setattr__(name, min(value, 5))


class WithProperty(Sums):
    @property
    def total(self):
        return vars(self)["total"]

    @total.setter
    def total(self, value):
        vars(self)["total"] = min(value, 5)


@pytest.mark.parametrize("kind", [WithSetter, WithProperty])
def test_where_setting_runs_code_of_the_users_there_is_no_sum(kind):
    holder = kind()
    assert learned_sums(holder).names(holder) == frozenset()


class AddsTwiceInALine(Sums):
    def adds(self, *values):
        self.total += self.more()

    def more(self):
        self.total += 1
        return 2


def test_what_is_lost_in_a_line_that_adds_twice_is_told():
    holder, plain, told = AddsTwiceInALine(), AddsTwiceInALine(), []
    with learned_sums(holder, AddsTwiceInALine.adds, AddsTwiceInALine.more).watched(told.append):
        holder.adds()
    plain.adds()
    assert told
    assert holder.total == plain.total == 3


class ByProperty(Sums):
    count = property(attrgetter("total"))

    def adds(self, *values):
        self.total += 1
        self.seen = self.count


def test_a_property_of_c_code_reads():
    holder, told = ByProperty(), []
    with learned_sums(holder, ByProperty.adds).watched(told.append):
        holder.adds()
    assert told
    assert (holder.seen, type(holder.seen)) == (2, int)


def test_where_another_thread_records_it_is_told_and_nothing_stays():
    one, other, told = Sums(), Sums(), []
    of_one, of_other = learned_sums(one), learned_sums(other)
    with of_one.watched(told.append):
        assert not told
        with of_other.watched(told.append):
            assert told
            other.adds(1)
            one.adds(1)
    assert (one.total, other.total) == (2, 2)
    assert "total" not in vars(Sums)


def test_where_code_asks_for_all_attributes_there_is_no_sum():
    holder = Sums()
    collected = Collected()
    codes = [Sums.adds.__code__, (lambda: dir(Sums)).__code__]
    collected.learn([("", holder)], [], {(id(vars(holder)), "total")}, codes)
    assert collected.names(holder) == frozenset()


def test_an_array_adds_itself_to_a_list():
    """As numpy has it: that is another thing than to extend the list."""
    holder, told = Holder(), []
    holder.kept.append(1.0)
    lists = learned(holder)
    with lists.watched(told.append):
        holder.kept += np.array([2.0])
    assert isinstance(holder.kept, np.ndarray)
    assert holder.kept.tolist() == [3.0]
    assert told
