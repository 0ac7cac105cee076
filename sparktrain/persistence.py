"""Saving and loading: Spark ML's JSON metadata beside the framework's native files.

::

    path/metadata/part-…    Params and fitted values, as `DefaultParamsWriter` writes them
    path/structure.pkl      architecture and other objects, by reference, without tensors
    path/model.safetensors  the tensors, by ``state_dict`` name

The pickle is read by an unpickler that admits torch's and NumPy's own building blocks, plain containers
and what the user has named, so that loading runs no stranger's code; code stored by value (a class from
``__main__``) needs the user's consent.
"""

from __future__ import annotations

import importlib
import io
import pickle
import sys
import tempfile
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from pyspark.errors import AnalysisException
from pyspark.ml.util import (
    DefaultParamsReader,
    DefaultParamsWriter,
    MLReadable,
    MLReader,
    MLWritable,
    MLWriter,
)
from pyspark.sql import SparkSession

from sparktrain import filesystem
from sparktrain.errors import PersistenceError
from sparktrain.params import GangParam
from sparktrain.session import SPARK_4, setting

STRUCTURE, TENSORS = "structure.pkl", "model.safetensors"
TRUST, ALLOW = "spark.sparktrain.trust", "spark.sparktrain.allow"


@dataclass(frozen=True)
class ToSave:
    """What can't go into JSON metadata, and what JSON the fitted state is.

    Parameters
    ----------
    structure : bytes
    write_tensors : callable
        Writes the tensors to the local file that it is given, without a copy of them all in memory.
    extra : mapping
    """

    structure: bytes
    write_tensors: Callable[[str], object]
    extra: Mapping[str, Any]


@dataclass(frozen=True)
class Saved:
    """What `ToSave` has become: `tensors_file` is a local file, to map; it loses its name after loading."""

    structure: bytes
    tensors_file: str
    extra: Mapping[str, Any]


Unpickler = Callable[[io.BytesIO], pickle.Unpickler]


def nothing(path: str) -> None:
    """Writes no weights: what `ToSave.write_tensors` is for a class without a `Saveable.weights_file`."""


def trusts(unpickler: Unpickler) -> bool:
    """Whether it runs any code."""
    return unpickler is pickle.Unpickler


def unpickled(structure: bytes, unpickler: Unpickler) -> Any:
    """What a saved pickle holds."""
    return unpickler(io.BytesIO(structure)).load()


class Saveable(MLWritable, MLReadable[Any]):
    """Gives an estimator or model ``write``, ``save``, ``read`` and ``load``."""

    weights_file = TENSORS
    """Name of the framework's native file in the directory; empty where nothing is saved in one."""
    _reader: ClassVar[type[Reader]]
    """What reads a saved one."""

    @staticmethod
    def _admits(module: str, name: str) -> bool:
        """Whether a saved pickle may use this, beside what every framework's may (see `_admitted`)."""
        return False

    @abstractmethod
    def _saved_objects(self) -> ToSave:
        """What is saved beside the Params."""

    @abstractmethod
    def _restore_objects(self, saved: Saved, unpickler: Unpickler) -> None:
        """Take up what was saved; pickles are read with `unpickler`."""

    def write(self) -> MLWriter:
        """A writer: ``instance.write().overwrite().save(path)``. ``save(path)`` alone never replaces."""
        return Writer(self)

    @classmethod
    def read(cls) -> MLReader[Any]:
        """A reader for ``read().load(path)``; `load` is the same."""
        return cls._reader(cls)

    @classmethod
    def load(cls, path: str, *, trust: bool = False, allow: str | tuple[str, ...] = ()) -> Self:
        """Load what `write` saved.

        Parameters
        ----------
        path : str
            A path without a scheme means Spark's default file system (on Spark Connect, the server's).
        trust : bool, default False
            Run any code that the file holds: needed where a class or function was stored by value (it was
            defined in ``__main__`` or a notebook). As a Spark setting: ``spark.sparktrain.trust=true``.
        allow : str or tuple of str
            Packages whose classes the file may use beside torch's own, such as that of your model. As a
            Spark setting: ``spark.sparktrain.allow=package,other``.

        Raises
        ------
        PersistenceError
            Where the file asks for code that was not allowed, or holds another kind of object.
        """
        allowed = (allow,) if isinstance(allow, str) else tuple(allow)
        loaded: Self = cls._reader(cls, trust=trust, allow=allowed).load(path)
        return loaded


class Writer(MLWriter):
    """``instance.write().overwrite().save(path)``."""

    def __init__(self, instance: Any) -> None:
        super().__init__()
        self._instance = instance

    def _handleOverwrite(self, path: str) -> None:
        filesystem.clear(active_session(), path)

    def saveImpl(self, path: str) -> None:
        spark = active_session()
        saved: ToSave = self._instance._saved_objects()
        values = {
            param.name: value
            for param, value in self._instance._paramMap.items()
            if not (isinstance(param, GangParam) and param.by_value)
        }
        extra = {"fitted": dict(saved.extra)}
        try:
            DefaultParamsWriter.saveMetadata(self._instance, path, context(spark), extra, values)
        except AnalysisException as error:
            if "exist" not in str(error):
                raise
            raise PersistenceError(f"{path} already exists; replace it with .write().overwrite().save(path)") from None
        with tempfile.TemporaryDirectory(prefix="sparktrain-") as local:
            Path(local, STRUCTURE).write_bytes(saved.structure)
            weights = self._instance.weights_file
            if weights:
                saved.write_tensors(f"{local}/{weights}")
            for name in filter(None, (STRUCTURE, weights)):
                filesystem.write_file(spark, f"{path}/{name}", f"{local}/{name}")


class Reader(MLReader[Any]):
    """Reads what `Writer` wrote.

    Parameters
    ----------
    cls : type
        The class asked to load.
    trust : bool
        Run any code the file holds.
    allow : tuple of str
        Packages whose classes may be used.
    """

    def __init__(self, cls: type, *, trust: bool = False, allow: tuple[str, ...] = ()) -> None:
        super().__init__()
        self._cls: Any = cls
        self._trust = trust
        self._allow = allow

    def load(self, path: str) -> Any:
        spark = active_session()
        metadata = DefaultParamsReader.loadMetadata(path, context(spark))
        expected = f"{self._cls.__module__}.{self._cls.__name__}"
        if metadata["class"] != expected:
            name = metadata["class"].rpartition(".")[2]
            raise PersistenceError(f"{path} holds a {metadata['class']}; load it with {name}.load(path)")
        instance = self._cls()
        instance._resetUid(metadata["uid"])
        known = {param.name for param in instance.params}
        by_value = [p.name for p in instance.params if isinstance(p, GangParam) and p.by_value]
        unknown = (set(metadata["paramMap"]) | set(metadata["defaultParamMap"])) - known
        if unknown:
            raise PersistenceError(
                f"{path} was saved by another version of sparktrain: it has Params {sorted(unknown)}"
            )
        metadata["defaultParamMap"] = {k: v for k, v in metadata["defaultParamMap"].items() if k not in by_value}
        DefaultParamsReader.getAndSetParams(instance, metadata)
        try:
            with tempfile.TemporaryDirectory(prefix="sparktrain-") as local:
                weights = instance.weights_file
                for name in filter(None, (STRUCTURE, weights)):
                    filesystem.read_file(spark, f"{path}/{name}", f"{local}/{name}")
                saved = Saved(Path(local, STRUCTURE).read_bytes(), f"{local}/{weights}", metadata["fitted"])
                instance._restore_objects(saved, self._unpickler(spark))
        except ModuleNotFoundError as error:
            raise PersistenceError(f"{path} needs a module that is not installed here: {error.name}") from error
        return instance

    def _unpickler(self, spark: SparkSession) -> Unpickler:
        trusted = self._trust or (setting(spark, TRUST) or "").lower() == "true"
        named = [name.strip() for name in (setting(spark, ALLOW) or "").split(",") if name.strip()]
        allow = (*self._allow, *named)
        return pickle.Unpickler if trusted else lambda file: RestrictedUnpickler(file, allow, self._cls._admits)


Saveable._reader = Reader


class RestrictedUnpickler(pickle.Unpickler):
    """Finds only what can't run a stranger's code: see `_admitted`.

    Parameters
    ----------
    file : BytesIO
    allow : tuple of str
        Packages whose classes may be used.
    admits : callable or None
        As `Saveable._admits`.

    Raises
    ------
    PersistenceError
        For anything else; the message names it and how to consent.
    """

    def __init__(
        self, file: io.BytesIO, allow: tuple[str, ...], admits: Callable[[str, str], bool] | None = None
    ) -> None:
        super().__init__(file)
        self._allow = allow
        self._admits = admits

    def find_class(self, module: str, name: str) -> Any:
        package = module.partition(".")[0]
        if any(module == allowed or module.startswith(f"{allowed}.") for allowed in self._allow):
            return _defined_in(module, name, self._allow)
        if _admitted(module, name) or (self._admits is not None and self._admits(module, name)):
            return super().find_class(module, name)
        if package in ("cloudpickle", "pyspark") or module == "types":
            raise PersistenceError(
                "the saved architecture holds code by value: a class or function from __main__ or a notebook. "
                f"If you trust this file, load(path, trust=True) or set {TRUST}=true; better, define the class "
                "in a module"
            )
        if package in sys.stdlib_module_names:
            raise PersistenceError(
                f"the saved architecture uses {module}.{name}, which is no part of a model; load(path, trust=True) "
                "would run it: do that only if you know this file"
            )
        raise PersistenceError(
            f"the saved architecture uses {module}.{name}, which loading does not admit by itself. If you trust "
            f"it, load(path, allow=({package!r},)) or set {ALLOW}={package}"
        )


_CONTAINERS = {
    "builtins": {
        "set",
        "frozenset",
        "list",
        "dict",
        "tuple",
        "slice",
        "range",
        "complex",
        "bytearray",
        "object",
    },
    "collections": {"OrderedDict", "defaultdict", "Counter", "deque"},
    "functools": {"partial"},
    "torch": {"Size", "device", "dtype", "Tensor"},
    "numpy": {"dtype", "ndarray"},
    "numpy.core.numeric": {"_frombuffer"},
    "numpy._core.numeric": {"_frombuffer"},
    "numpy.core.multiarray": {"_reconstruct", "scalar"},
    "numpy._core.multiarray": {"_reconstruct", "scalar"},
    "torch.serialization": {"_get_layout"},
    "copyreg": {"_reconstructor"},
    "sparktrain.torch.callbacks": {"EarlyStopping"},
    "xgboost.callback": {"EarlyStopping", "EvaluationMonitor", "LearningRateScheduler", "TrainingCheckPoint"},
}
_FUNCTIONS = ("torch.nn.functional", "torch._C._nn")
_FUNCTION_HOMES = (*_FUNCTIONS, "torch")
_CLASSES = ("torch.nn.", "torch.optim.", "torch.optim")
_CLASS_HOMES = (*_CLASSES, "torch.ao.nn.")


def _admitted(module: str, name: str) -> bool:
    """Containers, torch's functional operations, and torch's own modules, optimizers and schedulers."""
    if name in _CONTAINERS.get(module, ()):
        return True
    if module == "torch._utils" and name.startswith("torch."):
        return _is_constant(name.removeprefix("torch."))
    if "." in name:
        return False
    if module in _FUNCTIONS:
        found = getattr(importlib.import_module(module), name, None)
        defined_there = getattr(found, "__module__", None) in _FUNCTION_HOMES  # not a helper it imports
        return callable(found) and defined_there and not name.startswith("_")
    if module == "torch":
        return name in ("relu", "tanh", "sigmoid", "softmax") or _is_constant(name)
    if not module.startswith(_CLASSES):
        return False
    return _is_building_block(getattr(importlib.import_module(module), name, None))


def _defined_in(module: str, name: str, packages: tuple[str, ...]) -> Any:
    """A class or function of an allowed package; not what its modules have imported from others."""
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
        home = getattr(found, "__module__", None)
        if not isinstance(home, str) or not any(home == one or home.startswith(f"{one}.") for one in packages):
            raise PersistenceError(
                f"the saved architecture uses {module}.{name}, which is not defined in the allowed {list(packages)}"
            )
    return found


def _is_constant(name: str) -> bool:
    """A dtype, memory format or layout; torch pickles some of them as ``torch._utils`` + ``torch.name``."""
    import torch

    return isinstance(getattr(torch, name, None), (torch.dtype, torch.memory_format, torch.layout))


def _is_building_block(found: Any) -> bool:
    from torch import nn, optim

    if not isinstance(found, type) or not found.__module__.startswith(_CLASS_HOMES):
        return False
    return issubclass(found, (nn.Module, optim.Optimizer, optim.lr_scheduler.LRScheduler))


def active_session() -> SparkSession:
    return SparkSession.active()


def context(spark: SparkSession) -> Any:
    """What this pyspark's params reader and writer take: the session, before 4.0 the context."""
    return spark if SPARK_4 else spark.sparkContext
