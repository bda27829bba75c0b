"""What stands on a class before an attribute of its objects."""

import pytest

from lightning_sink.engine.state.attribute_watch import AttributeWatches, may_read_past


class Holder:
    def __init__(self, total=1):
        self.total = total


class Seen:
    """Writes down what it is told of one object."""

    def __init__(self):
        self.told = []

    def got(self, value, frame):
        self.told.append((value, frame.f_code.co_name))
        return value

    def changed(self):
        self.told.append("changed")


def watched(*holders):
    watches, seen = AttributeWatches(), [Seen() for _ in holders]
    for holder, each in zip(holders, seen, strict=True):
        assert watches.watch(holder, "total", each) is not None
    return watches, seen


def test_whoever_asks_and_whoever_sets_is_seen():
    holder = Holder()
    watches, (seen,) = watched(holder)
    holder.total += 2
    del holder.total
    watches.end()
    assert seen.told == [(1, "test_whoever_asks_and_whoever_sets_is_seen"), "changed", "changed"]
    assert "total" not in vars(Holder)
    holder.total = 4
    assert len(seen.told) == 3


@pytest.mark.parametrize("inherits", [False, True])
def test_others_of_the_class_are_as_they_were(inherits):
    class Base(Holder):
        total = 7

        def __init__(self):
            pass

    class Own(Base):
        if not inherits:
            total = 7

    holder, other = Own(), Own()
    holder.total = 1
    watches, (seen,) = watched(holder)
    assert (other.total, Own.total) == (7, 7)
    other.total = 3
    assert other.total == 3
    del other.total
    assert other.total == 7
    with pytest.raises(AttributeError):
        del other.total
    holder.total += 1
    watches.end()
    assert len(seen.told) == 2
    assert (holder.total, Own.total, vars(other)) == (2, 7, {})
    assert ("total" in vars(Own)) != inherits


@pytest.mark.parametrize("reverse", [False, True])
def test_a_class_and_its_base(reverse):
    class Base(Holder):
        total = 7

        def __init__(self):
            pass

    class Own(Base):
        pass

    holders = [Base(), Own()]
    for holder in holders:
        holder.total = 1
    watches, seen = watched(*(holders[::-1] if reverse else holders))
    assert (Base.total, Own.total, Own().total, Base().total) == (7, 7, 7, 7)
    for holder in holders:
        holder.total += 1
    watches.end()
    assert [len(each.told) for each in seen] == [2, 2]
    assert (Base.total, "total" in vars(Own)) == (7, False)
    assert [holder.total for holder in holders] == [2, 2]


def test_an_attribute_that_is_not_there_is_not():
    holder, other = Holder(), Holder()
    del other.total
    watches, _ = watched(holder)
    assert not hasattr(other, "total")
    assert not hasattr(Holder, "total")
    watches.end()
    assert "total" not in vars(Holder)


def test_where_another_step_is_recorded_it_is_told_and_nothing_stays():
    one, other = Holder(), Holder()
    watches, (seen,) = watched(one)
    others = AttributeWatches()
    assert others.watch(other, "total", Seen()) is None
    other.total += 1
    one.total += 1
    others.end()
    watches.end()
    assert (one.total, other.total, len(seen.told)) == (2, 2, 2)
    assert "total" not in vars(Holder)


def test_code_that_asks_for_all_attributes_reads_past():
    assert not may_read_past([Holder.__init__.__code__])
    assert may_read_past([(lambda: vars(Holder)).__code__])
    assert may_read_past([(lambda: dir(Holder)).__code__])
