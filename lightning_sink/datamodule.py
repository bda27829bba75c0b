"""SinkDataModule: a LightningDataModule as it is, with the options of the queue that fetches its batches ahead.

Nothing is fetched here: the datamodule gets one more attribute, a `QueueOptions`, which `SinkStrategy` reads and nobody
else does. This module owns that, what may be given options, and what is said of the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextvars import copy_context
from functools import partial
from typing import Any, Literal, NoReturn, cast

from lightning.pytorch import LightningDataModule, LightningModule
from lightning.pytorch.utilities import CombinedLoader

from lightning_sink.data.options import QueueOptions

_NAME = "_lightning_sink_options"
"""In the `__dict__`: copies and pickles have the options; what a datamodule makes of its public attributes does not."""


def options_of(datamodule: object) -> QueueOptions | None:
    """Returns the options that a datamodule was given; None for none, or without a datamodule."""
    options: QueueOptions | None = getattr(datamodule, "__dict__", {}).get(_NAME)  # past its own `__getattr__`
    return options


class SinkDataModule(LightningDataModule):
    """Gives a datamodule options for fetching its batches ahead in `SinkStrategy`, and returns it.

    It stays the object that it was, of its own class, and keeps the options in a private attribute: it serves wherever
    it did before, also without `SinkStrategy`, and its checkpoints are the same. Given options again, it has only the
    last ones. `trainer.strategy.queue_options` are those of a training.

    Args:
        datamodule: The datamodule. For loaders there is `SinkDataModule.from_loaders`.
        buffer_size: Most batches that are fetched and not yet taken. None is 16, 64 for those that are
            gathered of a dataset of tensors beside the steps, and 1,024 for those that are sent to a GPU beside its
            steps; 0 fetches nothing ahead.
        buffer_bytes: Most bytes of tensors that are fetched and not yet taken; a single larger batch still passes.
        early_preload: Whether fetching goes on between two sinks, while callbacks run. What a callback changes in the
            dataset then shows up to `buffer_size` batches late.
        timeout: Seconds to wait for a batch before the training ends with `DataTimeoutError`; None waits for ever.
        transfer_ahead: Whether the batch-transfer hooks may run ahead, on another thread. They must not look at the
            trainer's state then.
        cache: "device" keeps a dataset of tensors on the device and gathers batches there; None does not.
        cache_bytes: Most bytes of a dataset that `cache="device"` puts on the device.

    Raises:
        TypeError: For anything but a datamodule, or for an option of another type.
        ValueError: For an option that is not among the accepted values.
    """

    def __new__(
        cls,
        datamodule: LightningDataModule,
        *,
        buffer_size: int | None = QueueOptions.buffer_size,
        buffer_bytes: int = QueueOptions.buffer_bytes,
        early_preload: bool = QueueOptions.early_preload,
        timeout: float | None = QueueOptions.timeout,
        transfer_ahead: bool = QueueOptions.transfer_ahead,
        cache: Literal["device"] | None = QueueOptions.cache,
        cache_bytes: int = QueueOptions.cache_bytes,
    ) -> SinkDataModule:
        """Returns the datamodule, which is of another class: no `__init__` runs a second time."""
        options = QueueOptions(
            buffer_size=buffer_size,
            buffer_bytes=buffer_bytes,
            early_preload=early_preload,
            timeout=timeout,
            transfer_ahead=transfer_ahead,
            cache=cache,
            cache_bytes=cache_bytes,
        )
        datamodule = _made(datamodule)
        _require_datamodule(datamodule)
        vars(datamodule)[_NAME] = options  # past its own `__setattr__`
        return cast(SinkDataModule, datamodule)

    def __init_subclass__(cls, **options: Any) -> None:
        raise TypeError(
            f"`SinkDataModule` cannot be subclassed; `{cls.__name__}` does. Make `{cls.__name__}` a subclass of"
            f" LightningDataModule and give its object options: `SinkDataModule({cls.__name__}(...))`."
        )

    @classmethod
    def from_loaders(
        cls, train: Any = None, val: Any = None, test: Any = None, predict: Any = None, **options: Any
    ) -> SinkDataModule:
        """Makes a datamodule of loaders, and gives it options.

        Args:
            train: What `Trainer.fit` takes: a DataLoader, any other iterable of batches, or a collection of them.
            val: The same for validation.
            test: The same for testing.
            predict: The same for predicting.
            **options: The options of `SinkDataModule`.

        Returns:
            A datamodule that defines only the loaders that are given.

        Raises:
            TypeError: For what cannot be iterated over, or without any loader.
        """
        given = {"train": train, "val": val, "test": test, "predict": predict}
        given = {name: loader for name, loader in given.items() if loader is not None}
        if not given:
            raise TypeError("`SinkDataModule.from_loaders` takes at least one of `train`, `val`, `test` and `predict`.")
        datamodule = LightningDataModule()
        for name, loader in given.items():
            _require_loaders(name, loader)
            # On the object and not in a class: what is not given stays undefined to Lightning.
            setattr(datamodule, f"{name}_dataloader", partial(_itself, loader))
        return cls(datamodule, **options)

    @classmethod
    def from_datasets(cls, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuses, since there is no datamodule to make.

        Raises:
            TypeError: Always.
        """
        raise TypeError("Give options to what another makes: `SinkDataModule(LightningDataModule.from_datasets(...))`.")

    @classmethod
    def load_from_checkpoint(cls, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuses, since a checkpoint holds the datamodule without the options.

        Raises:
            TypeError: Always.
        """
        raise TypeError(
            "A checkpoint does not know the options. Give them to what the datamodule's own class loads:"
            " `SinkDataModule(MyDataModule.load_from_checkpoint(...))`."
        )


# What the command line of Lightning reads: it then leaves making the datamodule to us, see `_made`.
SinkDataModule.__new__.__annotations__["datamodule"] = Callable[[], LightningDataModule] | LightningDataModule


def _itself(loader: Any) -> Any:
    return loader


def _made(given: Any) -> Any:
    """Makes the datamodule where the command line gives what it is to be made of.

    The command line of Lightning would make it under the impression that its hyperparameters are those of
    `SinkDataModule`: `save_hyperparameters("batch_size")` would fail. They are in a context variable while we are
    called; the datamodule gets its own part of them, as without the options.
    """
    if not isinstance(given, partial) or not given.args or not _is_of(given.func, "jsonargparse"):
        return given
    context = copy_context()
    for variable, value in context.items():
        if isinstance(value, dict) and "_instantiator" in value and isinstance(value.get("datamodule"), dict):
            asked = value["datamodule"]
            own = {"_class_path": asked.get("class_path"), **asked.get("init_args", {}), **asked.get("dict_kwargs", {})}
            context.run(variable.set, {**own, "_instantiator": value["_instantiator"]})
    # Its last positional argument is the class; calling it as a whole would overwrite the variable.
    return context.run(partial(given.args[-1], **given.keywords))


def _is_of(item: object, package: str) -> bool:
    return getattr(item, "__module__", "").partition(".")[0] == package


def _require_datamodule(given: object) -> None:
    if not isinstance(given, LightningDataModule):
        name = given.__name__ if isinstance(given, type) else type(given).__name__
        what = "the class" if isinstance(given, type) else "an object of the class"
        raise TypeError(f"`SinkDataModule` takes a LightningDataModule; got {what} `{name}`. {_advice(given, name)}")


def _advice(given: object, name: str) -> str:
    if isinstance(given, type):
        return f"Pass an instance: `SinkDataModule({name}(...))`."
    if any(_is_of(base, "pytorch_lightning") for base in type(given).__mro__):
        return (
            "It is of the package `pytorch_lightning`: use `lightning` (`import lightning as L`) throughout, or call"
            " `lightning_sink.alias_pytorch_lightning()` before `pytorch_lightning` is imported."
        )
    if isinstance(given, LightningModule):
        return "The model goes to `Trainer.fit(model, datamodule=...)`; pass the data it trains on."
    if _is_iterable(given):
        return "For loaders use `SinkDataModule.from_loaders(train, val, ...)`."
    return "Pass a datamodule, or loaders to `SinkDataModule.from_loaders(train, val, ...)`."


def _require_loaders(name: str, given: Any) -> None:
    if isinstance(given, LightningDataModule):
        raise TypeError(f"`{name}` takes loaders; got a LightningDataModule. For that: `SinkDataModule(datamodule)`.")
    # Not iter(): that may start the workers of a loader.
    for loader in CombinedLoader(given).flattened if not isinstance(given, CombinedLoader) else given.flattened:
        if isinstance(loader, (str, bytes)) or not _is_iterable(loader):
            raise TypeError(
                f"`{name}` takes a DataLoader, any other iterable of batches, or a list or dict of them; got"
                f" {_shown(given)}{'' if loader is given else f' with {_shown(loader)} in it'}."
            )


def _shown(given: object) -> str:
    return repr(given) if isinstance(given, (int, float, str, bytes, type(None))) else f"a `{type(given).__name__}`"


def _is_iterable(given: object) -> bool:
    return isinstance(given, Iterable) or hasattr(type(given), "__getitem__")
