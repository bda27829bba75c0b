"""Training steps of random statements, of kinds that people write: the source of a module, from a seed.

A statement is a text whose fields are filled anew each time: `{number}` by an expression, `{name}` by the name of an
attribute that the second text makes. What is computed stays small: no field divides by what may be zero.
"""

import string
from random import Random

IMPORTS = """
import copy
import math
from collections import Counter, defaultdict

import torch
from gallery.case import Small


class Meter:
    def __init__(self):
        self.sum, self.count = 0.0, 0

    def update(self, value, many=1):
        self.sum += value * many
        self.count += many


def doubled(value):
    return 2 * value


class Steps(Small):
"""

STATEMENTS = [
    ('self.log("{name}", {number}{how})', ""),
    ('self.log("{name}", {tensor}{how})', ""),
    ("self.{name} = {number}", "0.0"),
    ("self.{name} += {number}", "0"),
    ("self.{name} = 0.9 * self.{name} + 0.1 * {taken}", "1.0"),
    ("self.{name} = max(self.{name}, {taken})", "-1.0"),
    ("self.{name}.append({collected})", "[]"),
    ("self.{name}.extend(y.tolist())", "[]"),
    ('self.{name}["all"].append({number})', "defaultdict(list)"),
    ('self.{name}["sum"] += {number}', '{{"sum": 0.0, "steps": 0}}'),
    ('self.{name}["sum"] = 0.5 * self.{name}["sum"] + {taken}; self.{name}["steps"] += 1', '{{"sum": 0, "steps": 0}}'),
    ('self.{name}[{key}] += 1; loss = loss * (1 + self.{name}["a"] / 500)', "Counter()"),
    ("self.{name}.update({taken}, len(y))", "Meter()"),
    ('self.{name}.update({number}); self.log("of {name}", self.{name}.sum / self.{name}.count)', "Meter()"),
    ("self.{name} = {tensor}.detach()", "torch.zeros(())"),
    ("self.{name} = 0.9 * self.{name} + 0.1 * {tensor}.detach()", "torch.zeros(())"),
    ("self.{name} += out.detach().mean(0)", "torch.nn.Buffer(torch.zeros(3))"),
    ("loss = loss + 0.01 * (self.{name} * out).mean()", "torch.nn.Parameter(torch.ones(3))"),
    ("loss = loss * (1 + 0.001 * {counted})", ""),
    ("loss = loss + 0.01 * loss * {taken}", ""),
    ("loss = loss + 0.01 * torch.rand(()) * out.square().mean()", ""),
    ('self.optimizers().param_groups[0]["lr"] = 0.05 / (1 + {counted})', ""),
    ("self.said.append('%.2f' % self.current_epoch)", ""),
]
"""What a step may do, and what its attribute is before; "" where it has none."""

FIELDS = {
    "tensor": ["loss", "out.mean()", "out.abs().max()", "(out.argmax(1) == y).float().mean()", "x.std()"],
    "taken": ["loss.item()", "float(out.mean())", "out.abs().max().item()", "int((out.argmax(1) == y).sum())"],
    "counted": ["batch_idx", "self.global_step", "self.current_epoch", "self.calls", "len(y)"],
    "collected": ["{number}", "{tensor}.detach()", "({number}, {tensor}.detach())", "out.argmax(1).numpy()", "y"],
    "condition": [
        "batch_idx % 3 == 1",
        "self.global_step > 9",
        "self.current_epoch == 1",
        "self.calls % 2",
        "loss < 3",
    ],
    "how": ["", ", on_epoch=True", ", on_step=False, on_epoch=True", ', on_epoch=True, reduce_fx="max"'],
    "key": ['"a"', '"b" if batch_idx % 2 else "a"'],
}
COMPUTED = ["({a} + {b})", "({a} - {b})", "0.5 * {a}", "doubled({a})", "-{a}", "abs({a})", "{a} / (1 + {counted})"]


class RandomSteps(string.Formatter):
    """Writes the source of one module."""

    def __init__(self, seed: int) -> None:
        self.random, self.attributes, self.methods = Random(seed), {"calls": "0", "said": "[]"}, []

    def get_value(self, key, args, kwargs):
        """Fills a field of a statement."""
        if key in kwargs:
            return kwargs[key]
        return self.number() if key == "number" else self.format(self.random.choice(FIELDS[key]))

    def number(self, deep: int = 2) -> str:
        """Returns an expression that is a number of Python's."""
        if not deep or self.random.random() < 0.4:
            return self.format(self.random.choice(["{taken}", "{taken}", "{counted}", "0.5"]))
        return self.format(self.random.choice(COMPUTED), a=self.number(deep - 1), b=self.number(deep - 1))

    def statement(self, deep: int = 1) -> list[str]:
        """Returns the lines of one statement, or of one in a branch, a loop or a method of its own."""
        way = self.random.random() if deep else 1
        if way < 0.3:
            body = [f"    {line}" for line in self.statement(deep - 1)]
            head = self.random.choice(["if {condition}:", "if {condition}:", "for _ in range(2):", "if self.training:"])
            return [self.format(head), *body]
        if way < 0.4:
            name = f"part_{len(self.methods)}"
            self.methods.append([f"def {name}(self, x, y, out, loss, batch_idx):"])
            self.methods[int(name[5:])] += [f"    {line}" for line in self.statement(deep - 1)]
            return [f"self.{name}(x, y, out, loss, batch_idx)"]
        text, before = self.random.choice(STATEMENTS)
        name = f"name_{len(self.attributes)}"
        self.attributes[name] = self.format(before)
        return self.format(text, name=name).split("; ")

    def source(self) -> str:
        """Returns the module's source."""
        step = ["def training_step(self, batch, batch_idx):", "    x, y = batch", "    self.calls += 1"]
        step += ["    out = self(x)", "    loss = torch.nn.functional.cross_entropy(out, y)"]
        step += [f"    {line}" for _ in range(self.random.randint(2, 6)) for line in self.statement()]
        step += [self.random.choice(["    return loss", '    return {"loss": loss, "out": out.detach()}'])]
        reset = [name for name, before in self.attributes.items() if before in ("[]", "defaultdict(list)")]
        ends = ["def on_train_epoch_end(self):", "    self.seen.append(copy.deepcopy(self.state()))"]
        ends += [f"    self.{name}.clear()" for name in reset if self.random.random() < 0.7]
        held = [f"    self.{name} = {before}" for name, before in self.attributes.items() if before]
        made = ["def __init__(self):", "    super().__init__()", "    self.seen = []", *held]
        state = ["def state(self):", f"    return [getattr(self, name, None) for name in {[*self.attributes]}]"]
        return IMPORTS + "".join(f"    {line}\n" for part in (made, step, *self.methods, ends, state) for line in part)
