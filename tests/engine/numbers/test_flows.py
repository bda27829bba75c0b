"""Where the source says that a number goes, and nowhere else."""

import sys
from functools import lru_cache, partial
from types import SimpleNamespace

import pytest
import torch

import positions
from lightning_sink.engine.numbers.flows import Getter, is_only_added_to, receivers
from lightning_sink.engine.numbers.passed_on import RETURNED

pytestmark = positions.needed


class Value:
    """Stands for a tensor; its `item()` asks where the number goes."""

    def __init__(self, value=2.0):
        self.found, self.value = None, value

    def item(self):
        self.found = receivers(sys._getframe(1))
        return self.value


def number_of(x):
    return x.item() / 2


def named(x):
    return {"x": x.item()}


def with_others(x):
    number = x.item()
    return x, [number], {"x": number}


def either(x):
    if x is None:
        return {}, x
    return x, {"x": x.item()}


def put_in(x):
    found = {}
    found["one"] = 1.0
    for name in "xy":
        found[name] = x.item()
    return found


def of_another(x):
    found = named(x)
    return x, found


def by_steps(x):
    yield x.item()


@lru_cache
def remembered(x):
    return x.item()


class Owner:
    def __init__(self):
        self.losses, self.total = [], 0.0
        self.table = {"x": [], "y": []}
        self.net = SimpleNamespace(seen=[], total=0.0)
        self.own = number_of

    def shared(self, x, stage="train"):
        loss, parts = with_others(x)[:2]
        return loss, {f"{stage}_x": x.item()}

    @property
    def kept(self):
        return self.value.item()

    def log(self, name, value, **options):
        pass

    def log_dict(self, values):
        pass


class Heir(Owner):
    def shared(self, x, stage="test"):
        return super().shared(x, stage=stage)


def as_it_is(self, x):
    self.log("x", x.item())


def by_name(self, x):
    self.log(name="x", value=x.item(), prog_bar=True)


def on_lines_of_its_own(self, x):
    self.log(
        "x",
        x.item(),
    )


def computed_with(self, x):
    self.log("x", -(100 * x.item() + 1) / 3 if self else 0.0)


def in_a_dictionary(self, x):
    self.log_dict({"a": 1.0, "x": [(x.item(), 1)]})


def in_a_comprehension(self, x):
    self.log_dict({name: x.item() / 2 for name in "ab"})


def in_a_list(self, x):
    self.losses.extend([x.item() for _ in range(2)])


def appended(self, x):
    self.net.seen.append({"x": x.item()})


def added(self, x):
    self.total += x.item() * 3


def by_a_variable(self, x):
    number = x.item()
    half = number / 2
    self.log("x", number)
    for _ in range(2):
        self.losses.append(half)


def added_in_full(self, x):
    self.total = self.total + x.item() * 2


def by_a_variable_of_two_branches(self, x):
    if self.losses:
        self.losses.clear()
        number = 1.0
    else:
        number = x.item()
    self.log("x", number)


def by_a_sum_of_its_own(self, x):
    total = 0.0
    for _ in range(2):
        total += x.item()
    total *= 2
    self.log("x", total / 2)


def by_a_dictionary(self, x):
    numbers = {"x": x.item()}
    self.log_dict(numbers)


def returned_by_a_function(self, x):
    self.log("x", number_of(x) * 2)


def returned_by_a_method(self, x):
    _, numbers = self.shared(x, stage="val")
    for name, number in numbers.items():
        self.log(name, number)
    self.log("again", numbers["val_x"])


def returned_by_an_attribute(self, x):
    self.log("x", self.own(x))


def returned_by_a_property(self, x):
    self.value = x
    self.log("x", self.kept)


def returned_by_two(self, x):
    loss, found = of_another(x)
    self.log_dict({f"train/{name}": number for name, number in found.items()})


def returned_in_a_dictionary_that_is_filled(self, x):
    self.log_dict(put_in(x))


def gone_through(self, x):
    found = {"x": x.item()}
    for number in found.values():
        self.losses.append(number)


def by_a_dictionary_that_is_read(self, x):
    numbers = {"x": x.item()}
    self.log_dict(numbers)
    self.log("x", numbers["x"])


def in_a_dictionary_of_lists(self, x):
    self.table["x"].append(x.item())


def in_a_dictionary_of_lists_by_a_variable(self, x):
    for name in ("x", "y"):
        self.table[name] += [x.item()]


LOG, APPEND, ADD = ("self", "", "log"), ("self", "losses", "append"), ("self", "total", "+=")


def returned_by_a_parents_method(self, x):
    _, found = self.shared(x)
    self.log_dict(found)


GOES = {
    as_it_is: [LOG],
    by_name: [LOG],
    on_lines_of_its_own: [LOG],
    computed_with: [LOG],
    in_a_dictionary: [("self", "", "log_dict")],
    in_a_comprehension: [("self", "", "log_dict")],
    in_a_list: [("self", "losses", "extend")],
    appended: [("net", "seen", "append")],
    added: [ADD],
    added_in_full: [ADD],
    by_a_variable: [LOG, APPEND],
    by_a_variable_of_two_branches: [LOG],
    by_a_sum_of_its_own: [LOG],
    by_a_dictionary: [("self", "", "log_dict")],
    returned_by_a_function: [LOG],
    returned_by_a_method: [LOG],
    returned_by_an_attribute: [LOG],
    returned_by_a_property: [LOG],
    returned_by_two: [("self", "", "log_dict")],
    returned_in_a_dictionary_that_is_filled: [("self", "", "log_dict")],
    gone_through: [APPEND],
    by_a_dictionary_that_is_read: [("self", "", "log_dict"), LOG],
    in_a_dictionary_of_lists: [("self", "table", "append", "x")],
    in_a_dictionary_of_lists_by_a_variable: [("self", "table", "+=", "y")],
    returned_by_a_parents_method: [("self", "", "log_dict")],
}


@pytest.mark.parametrize("function", GOES, ids=lambda function: function.__name__)
def test_receivers(function):
    owner, x = Heir(), Value()
    function(owner, x)
    holders = {"self": owner, "net": owner.net}
    expected = [Getter(holders[holder], *how) for holder, *how in GOES[function]]
    assert sorted({str(getter) for getter in x.found}) == sorted(map(str, expected))


def test_what_goes_to_nobodys_code_is_returned():
    x, steps, y = Value(), Value(), Value()
    engine = {"__name__": "lightning_sink.engine.compiled"}
    exec("def run(function, *arguments):\n    return function(*arguments)", engine)
    engine["run"](torch.no_grad()(returned), Owner(), x)
    engine["run"](lambda: [*torch.no_grad()(by_steps)(steps)])
    assert x.found == [Getter(returned.__code__, "", RETURNED)]
    assert steps.found == []
    torch.no_grad()(returned)(Owner(), y)  # which this line gets, by way of torch's
    assert y.found == []


def thrown_away(self, x):
    x.item()


def returned(self, x):
    return x.item()


def compared(self, x):
    self.log("x", x.item() > 1)


def a_condition(self, x):
    self.log("x", 1 if x.item() else 0)


def a_filter(self, x):
    self.log_dict({name: 1 for name in "ab" if x.item()})


def a_key(self, x):
    self.log_dict({x.item(): 1})


def in_a_set(self, x):
    self.log("x", {x.item()})


def a_divisor(self, x):
    self.log("x", 1 / x.item())


def a_power(self, x):
    self.log("x", x.item() ** 2)


def a_whole_part(self, x):
    self.log("x", x.item() // 2)


def in_a_text(self, x):
    self.log(f"{x.item()}", 1)


def by_another_function(self, x):
    self.log("x", max(x.item(), 1.0))


def by_a_method_of_its_own(self, x):
    self.log("x", x.item().real)


def by_a_function_that_is_a_variable(self, x):
    log = self.log
    log("x", x.item())


def of_what_a_call_gives(self, x):
    vars(self)["net"].seen.append(x.item())


def in_a_dictionary_under_what_is_computed(self, x):
    self.table["x" + ""].append(x.item())


def multiplied(self, x):
    self.total *= x.item()


def returned_and_looked_at(self, x):
    self.log("x", 1.0 if number_of(x) > 1 else 0.0)


def returned_to_c(self, x):
    self.log("x", sum(map(number_of, [x])))


def returned_through_a_wrapper(self, x):
    self.log("x", remembered(x))


def returned_through_a_partial(self, x):
    half = partial(number_of, x)
    self.log("x", half())


def returned_at_one_of_two_places(self, x):
    one, _ = either(x)
    self.log("x", one)


def returned_and_kept(self, x):
    found = named(x)
    self.net.found = found
    self.log_dict(found)


def returned_and_counted(self, x):
    found = named(x)
    self.log("x", len(found))
    self.log_dict(found)


def returned_by_steps(self, x):
    for number in by_steps(x):
        self.log("x", number)


def returned_to_more_names(self, x):
    one, two, *rest = with_others(x)
    self.log("x", two[0])


def put_into_what_is_not_its_own(self, x):
    found = vars(self.net)
    found["x"] = x.item()
    self.log_dict(found)


def put_into_what_it_is_given(self, x, found=None):
    found = found or self.net.seen
    found[0:] = [x.item()]
    self.log("x", found[0])


def put_in_as_a_key(self, x):
    found = {}
    found[x.item()] = 1.0
    self.log_dict(found)


def gone_through_by_name(self, x):
    found = {"x": x.item()}
    for name, number in sorted(found.items()):
        self.log(name, number)


def an_index(self, x):
    self.losses[int(x.item()) :] = []


def by_a_variable_that_decides(self, x):
    number = x.item()
    self.log("x", number)
    if number > 1:
        self.log("y", 1.0)


def by_a_variable_of_itself(self, x):
    number = 1.0
    for _ in range(2):
        number = number + x.item()


def by_a_variable_that_divides(self, x):
    number, rest = 1.0, 6.0
    number *= x.item()
    rest /= number
    self.log("x", rest)


def added_with_more(self, x):
    self.total = self.total + x.item() + 1.0


def added_to_another(self, x):
    self.total = self.net.total + x.item()


def by_two_variables(self, x):
    one, other = x.item(), 1
    self.log("x", one + other)


def by_a_variable_of_a_function_within(self, x):
    number = x.item()

    def use():
        return number > 1

    self.log("x", number if use() else 1)


def by_a_variable_that_is_seen(self, x):
    number = x.item()
    self.log("x", number)
    self.log("y", len(locals()))


def by_a_global(self, x):
    global number
    number = x.item()
    self.log("x", number)


def by_a_generator(self, x):
    self.losses.extend(x.item() for _ in range(2))


def unpacked(self, x):
    self.losses.extend(*[[x.item()]])


NOWHERE = [
    *[thrown_away, returned, compared, a_condition, a_filter, a_key, in_a_set, a_divisor, a_power, a_whole_part],
    *[in_a_text, by_another_function, by_a_method_of_its_own, by_a_function_that_is_a_variable, of_what_a_call_gives],
    in_a_dictionary_under_what_is_computed,
    *[multiplied, an_index, by_a_variable_that_decides, by_a_variable_that_divides, by_a_variable_of_itself],
    *[added_with_more, added_to_another],
    *[by_two_variables, by_a_variable_of_a_function_within, by_a_variable_that_is_seen, by_a_global],
    *[by_a_generator, unpacked, returned_and_looked_at, returned_to_c, returned_through_a_wrapper],
    *[returned_through_a_partial, returned_at_one_of_two_places, returned_and_kept, returned_and_counted],
    *[returned_by_steps, returned_to_more_names, put_into_what_is_not_its_own],
    *[put_into_what_it_is_given, put_in_as_a_key, gone_through_by_name],
]


@pytest.mark.parametrize("function", NOWHERE, ids=lambda function: function.__name__)
def test_what_may_go_elsewhere_has_none(function):
    x = Value()
    function(Owner(), x)
    assert x.found == []


def loaded(path, text):
    """Returns what code of a file defines; the text need not be what is in the file."""
    held = {}
    exec(compile(text, str(path), "exec"), held)
    return SimpleNamespace(**held)


def test_what_is_done_takes_no_longer_with_each_variable(tmp_path):
    """Nor does a sum of a thousand terms, as generated code has it, go deeper than Python does."""
    lines = ["    v0 = x.item()", *(f"    v{n + 1} = v{n} * v{n} + v{n} + {n}" for n in range(60))]
    chain = "def chain(self, x):\n" + "\n".join(lines) + '\n    self.log("x", v60)\n'
    (tmp_path / "chain.py").write_text(chain)
    x = Value(0.5)
    loaded(tmp_path / "chain.py", chain).chain(Owner(), x)
    assert [found.how for found in x.found] == ["log"]
    terms = f"def terms(self, x):\n    self.log('x', {' + '.join(['x.item()'] * 900)})\n"
    (tmp_path / "terms.py").write_text(terms)
    loaded(tmp_path / "terms.py", terms).terms(Owner(), x)  # of which the last ones are found


def test_a_file_that_has_changed_is_not_believed(tmp_path):
    """The line that runs calls something else than the one that is in the file by now, of the same length."""
    path, text = tmp_path / "own_step.py", 'def step(self, x):\n    self.log("x", x.item())\n'
    path.write_text(text)
    control, x, owner = Value(), Value(), Owner()
    loaded(path, text).step(owner, control)
    assert control.found
    owner.pot = owner.log
    loaded(path, text.replace("log", "pot")).step(owner, x)
    assert x.found == []


def test_without_a_source_there_are_none():
    held = {}
    exec("def step(self, x):\n    self.log('of no file', x.item())", held)
    x = Value()
    held["step"](Owner(), x)
    assert x.found == []


class Counts:
    def adds(self):
        self.steps += 1
        self.rows += self.size

    def adds_elsewhere(self):
        self.net.steps += 2

    def adds_in_full(self):
        self.steps = self.steps + self.size

    def reads(self):
        return self.rows > 1

    def sets(self):
        self.steps = 0

    def subtracts(self):
        self.steps -= 1

    def deletes(self):
        del self.steps

    def reads_within(self):
        self.steps += 1
        return [self.steps for _ in range(2)]

    @property
    def far(self):
        return self.steps


CODES = {name: value.__code__ for name, value in vars(Counts).items() if hasattr(value, "__code__")}


def test_what_is_only_added_to():
    assert is_only_added_to("steps", [CODES["adds"], CODES["adds_elsewhere"], CODES["adds_in_full"], CODES["reads"]])
    assert not is_only_added_to("rows", [CODES["adds"], CODES["reads"]])
    assert not is_only_added_to("size", [CODES["adds"]])
    for name in ("sets", "subtracts", "deletes", "reads_within"):
        assert not is_only_added_to("steps", [CODES["adds"], CODES[name]]), name
    assert not is_only_added_to("steps", [CODES["adds"], Counts.far.fget.__code__])


def test_what_has_no_source_may_read():
    held = {}
    exec("def adds(self):\n    self.steps += 1", held)
    assert not is_only_added_to("steps", [held["adds"].__code__])
