"""Which lines have a logger write numbers and ask it for nothing else, as their source says."""

import contextlib
import sys
from types import SimpleNamespace

import pytest
import torch

import positions
from lightning_sink.trainer.logger_uses import LOGGER, LOGGERS, is_statement, only_writes

pytestmark = positions.needed


ENGINE = {"__name__": "lightning_sink.engine.compiled"}
exec("def run(function, module):\n    return function(module)", ENGINE)


class Module:
    """Asks at each read whether the line may have a stand-in."""

    def __init__(self):
        self.found, self.statements = [], []

    @property
    def logger(self):
        self.found.append(only_writes(sys._getframe(1), LOGGER))
        return SimpleNamespace(
            log_metrics=self.take, experiment=SimpleNamespace(add_scalar=self.take, step=0), name="x"
        )

    @property
    def loggers(self):
        self.found.append(only_writes(sys._getframe(1), LOGGERS))
        return [SimpleNamespace(log_metrics=self.take)]

    def take(self, *args, **kwargs):
        self.statements.append(is_statement(sys._getframe(1)))


def called(self):
    self.logger.log_metrics({"x": 1}, step=0)


def on_lines_of_its_own(self):
    self.logger.experiment.add_scalar(
        "x",
        1,
    )


def by_variables(self):
    logger = self.logger
    writer = logger.experiment
    if logger is not None:
        for number in range(2):
            writer.add_scalar("x", number)
        logger.log_metrics({})


def in_a_loop(self):
    for logger in self.loggers:
        logger.log_metrics({})


def by_a_place(self):
    self.loggers[0].log_metrics({})


def asked_for_its_class(self):
    if isinstance(self.logger, SimpleNamespace):
        self.logger.log_metrics({})


def without_gradients(self):
    with torch.no_grad():
        self.logger.log_metrics({})


FINE = [called, on_lines_of_its_own, by_variables, in_a_loop, by_a_place, asked_for_its_class, without_gradients]


@pytest.mark.parametrize("function", FINE, ids=lambda function: function.__name__)
def test_a_line_that_only_writes(function):
    module = Module()
    ENGINE["run"](function, module)
    assert module.found
    assert all(module.found)
    assert all(module.statements)


def asked_for_its_name(self):
    return self.logger.name


def asked_for_its_type(self):
    return type(self.logger)


def asked_whether_it_is_true(self):
    return bool(self.logger)


def compared(self):
    return self.logger is self


def kept(self):
    self.own = self.logger


def handed_on(self):
    print(self.logger, file=sys.stderr)


def returned(self):
    return self.logger


def its_writer_returned(self):
    return self.logger.experiment


def asked_for_more_of_its_writer(self):
    writer = self.logger.experiment
    writer.add_scalar("x", 1)
    return writer.step


def by_a_variable_that_is_kept(self):
    logger = self.logger
    logger.log_metrics({})
    self.own = [logger]


def by_a_variable_of_a_function_within(self):
    logger = self.logger
    return lambda: logger.name


def all_of_them(self):
    return len(self.loggers)


def its_method_kept(self):
    method = self.logger.log_metrics
    method({})


def what_it_gives_is_used(self):
    return self.logger.log_metrics({})


def within_a_try(self):
    try:
        self.logger.log_metrics({})
    except ConnectionError:
        self.own = None


def within_what_catches(self):
    with contextlib.suppress(ConnectionError):
        self.logger.log_metrics({})


def called_within_a_try(self):
    try:
        called(self)
    except ConnectionError:
        self.own = None


def added_to(self):
    loggers = self.loggers
    loggers += [None]


def by_steps(self):
    def steps():
        logger = self.logger
        yield logger.log_metrics({})

    [*steps()]


NOT_FINE = [
    *[asked_for_its_name, asked_for_its_type, asked_whether_it_is_true, compared, kept, handed_on, returned],
    *[
        its_writer_returned,
        asked_for_more_of_its_writer,
        by_a_variable_that_is_kept,
        by_a_variable_of_a_function_within,
    ],
    *[all_of_them, its_method_kept, what_it_gives_is_used, within_a_try, within_what_catches],
    *[called_within_a_try, added_to, by_steps],
]


@pytest.mark.parametrize("function", NOT_FINE, ids=lambda function: function.__name__)
def test_a_line_that_asks_for_more(function):
    module = Module()
    ENGINE["run"](function, module)
    assert module.found == [False]


@pytest.mark.parametrize("function", [what_it_gives_is_used, within_a_try, called_within_a_try])
def test_a_call_that_is_no_statement_of_its_own(function):
    module = Module()
    ENGINE["run"](function, module)
    assert module.statements == [False]


def test_without_a_source_nothing_is_certain():
    held, module = {}, Module()
    exec("def step(self):\n    self.logger.log_metrics({})", held)
    ENGINE["run"](held["step"], module)
    assert module.found == [False]
