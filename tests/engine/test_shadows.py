"""What takes the place of a method, a property or an attribute for a while."""

import pytest

from lightning_sink.engine.shadows import replaced, shadowed


class Base:
    given = "by the base"

    def called(self):
        return "own"


class Derived(Base):
    nothing = None


def fail_in(context, item, name):
    with context:
        assert getattr(item, name) == "another"
        raise KeyError(name)


def test_an_instance_alone_has_another_method():
    item, other = Base(), Base()
    with shadowed(item, {"called": lambda: "another"}):
        assert (item.called(), other.called()) == ("another", "own")
    assert item.called() == "own"
    assert not vars(item)


def test_an_attribute_of_its_own_is_put_back_after_an_error():
    item = Base()
    item.given = "by hand"
    with pytest.raises(KeyError):
        fail_in(shadowed(item, {"given": "another"}), item, "given")
    assert vars(item) == {"given": "by hand"}


@pytest.mark.parametrize("name", ["given", "called", "nothing"])
def test_a_class_is_left_as_it_was(name):
    before = dict(vars(Derived))
    with pytest.raises(KeyError):
        fail_in(replaced(Derived, name, "another"), Derived(), name)
    assert dict(vars(Derived)) == before
