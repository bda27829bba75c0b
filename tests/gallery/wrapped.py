"""What a decorator of the standard library keeps beside the user's function, changed from epoch to epoch."""

import contextlib
import functools

from gallery.case import Small, case


def dispatching():
    @functools.singledispatch
    def weighed(kind, loss):
        return loss

    return weighed


@case()
class ChosenByType(Small):
    def __init__(self):
        super().__init__()
        globals()["chosen"] = dispatching()

    def training_step(self, batch, batch_idx):
        return chosen(1, self.loss(batch))  # noqa: F821

    def on_train_epoch_end(self):
        factor = 1.5 + self.current_epoch
        chosen.register(int, lambda kind, loss: factor * loss)  # noqa: F821


@case()
class ChosenByTypeOfAnAttribute(Small):
    def __init__(self):
        super().__init__()
        self.chosen = dispatching()

    def training_step(self, batch, batch_idx):
        return self.chosen(1, self.loss(batch))

    def on_train_epoch_end(self):
        factor = 1.5 + self.current_epoch
        self.chosen.register(int, lambda kind, loss: factor * loss)


@case()
class ManyTypes(Small):
    """What has been chosen is kept: that is no change of anything."""

    def __init__(self):
        super().__init__()
        self.chosen = dispatching()

    def training_step(self, batch, batch_idx):
        return self.chosen(type("New", (), {})(), self.loss(batch))


class Methods(Small):
    @functools.singledispatchmethod
    def weighed(self, kind, loss):
        return loss

    def training_step(self, batch, batch_idx):
        return self.weighed(1, self.loss(batch))


@case()
class AMethodChosenByType(Methods):
    def __init__(self):
        super().__init__()
        type(self).weighed = functools.singledispatchmethod(Methods.weighed.__wrapped__)

    def on_train_epoch_end(self):
        factor = 1.5 + self.current_epoch
        vars(type(self))["weighed"].register(int, lambda self, kind, loss: factor * loss)


class Static(Small):
    weighed = staticmethod(dispatching())

    def training_step(self, batch, batch_idx):
        return self.weighed(1, self.loss(batch))


@case()
class AStaticMethodChosenByType(Static):
    def __init__(self):
        super().__init__()
        type(self).weighed = staticmethod(dispatching())

    def on_train_epoch_end(self):
        factor = 1.5 + self.current_epoch
        self.weighed.register(int, lambda kind, loss: factor * loss)


ENTERED, CONTEXTS = [], []


class Weighing(contextlib.ContextDecorator):
    def __init__(self):
        self.factor = 1.0
        CONTEXTS[:] = [self]

    def __enter__(self):
        ENTERED.append(self.factor)

    def __exit__(self, *error):
        ENTERED.pop()


@case()
class InAContext(Small):
    """Of what the step calls, nothing but the decorator's function knows the context."""

    def __init__(self):
        super().__init__()
        globals()["weighed"] = Weighing()(lambda loss: ENTERED[-1] * loss)

    def training_step(self, batch, batch_idx):
        return weighed(self.loss(batch))  # noqa: F821

    def on_train_epoch_end(self):
        CONTEXTS[0].factor = 1.5 + self.current_epoch


FACTORS = [1.0]


@functools.lru_cache
def factor():
    return FACTORS[0]


@case()
class KeptByACache(Small):
    """The cache is full before the first step, and emptied between epochs."""

    def __init__(self):
        super().__init__()
        FACTORS[:] = [1.0]
        factor.cache_clear()
        factor()

    def training_step(self, batch, batch_idx):
        return factor() * self.loss(batch)

    def on_train_epoch_end(self):
        FACTORS[:] = [1.5 + self.current_epoch]
        factor.cache_clear()


@case()
class KeptByACacheThatIsAskedOften(KeptByACache):
    """It looks as if it had never been emptied."""

    def on_train_epoch_end(self):
        super().on_train_epoch_end()
        for _ in range(50):
            factor()


@case()
class AStaticMethodKeptByACache(Small):
    def __init__(self):
        super().__init__()
        FACTORS[:] = [1.0]
        self.factor.cache_clear()
        self.factor()

    @staticmethod
    @functools.lru_cache
    def factor():
        return FACTORS[0]

    def training_step(self, batch, batch_idx):
        return self.factor() * self.loss(batch)

    def on_train_epoch_end(self):
        FACTORS[:] = [1.5 + self.current_epoch]
        self.factor.cache_clear()


@case()
class AMethodKeptByACache(Small):
    def __init__(self):
        super().__init__()
        FACTORS[:] = [1.0]
        self.factor()

    @functools.lru_cache  # noqa: B019
    def factor(self):
        return FACTORS[0]

    def training_step(self, batch, batch_idx):
        return self.factor() * self.loss(batch)

    def on_train_epoch_end(self):
        FACTORS[:] = [1.5 + self.current_epoch]
        type(self).factor.cache_clear()


@case()
class APropertyKeptByACache(Small):
    """It depends on the epoch, which compiled steps are not asked for."""

    @property
    @functools.lru_cache  # noqa: B019
    def factor(self):
        return FACTORS[0] + self.trainer.current_epoch

    def on_train_epoch_start(self):
        FACTORS[:] = [1.0]
        vars(type(self))["factor"].fget.cache_clear()
        assert self.factor

    def training_step(self, batch, batch_idx):
        return self.factor * self.loss(batch)


class Weights:
    @functools.lru_cache  # noqa: B019
    def factor(self):
        return FACTORS[0]


@case()
class AMethodOfAnotherKeptByACache(Small):
    def __init__(self):
        super().__init__()
        FACTORS[:] = [1.0]
        self.weights = Weights()
        self.weights.factor()

    def training_step(self, batch, batch_idx):
        return self.weights.factor() * self.loss(batch)

    def on_train_epoch_end(self):
        FACTORS[:] = [1.5 + self.current_epoch]
        Weights.factor.cache_clear()
