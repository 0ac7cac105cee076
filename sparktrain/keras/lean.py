"""Importing Keras without the packages that it would import, were they installed, and that training does not use.

Where scikit-learn, Matplotlib, pandas and JAX are installed, Keras and TensorFlow import them: 2.4 of 5 s. A worker
that trains puts that off until something is used.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Collection, Iterator
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class _Later(ModuleType):
    """Stands for a module; the first look into it, after the block, imports it."""

    blocked = True

    def __getattr__(self, name: str) -> Any:
        if not self.blocked:
            return getattr(importlib.import_module(self.__name__), name)
        if self.__name__ in _TYPES and name in _TYPES[self.__name__]:
            return _LaterType(name, (), {"__module__": self.__name__})
        raise AttributeError(name)


class _LaterType(type):
    """Makes what stands for a class: its instances are those of the class itself, if its module was imported."""

    def __instancecheck__(cls, instance: object) -> bool:
        found = getattr(sys.modules.get(cls.__module__), cls.__name__, None)
        return found is not None and isinstance(instance, found)


_TYPES = {"pandas": ("DataFrame", "Series")}
"""Classes that Keras takes out of a module as it is imported."""


class _Finder:
    """Lets the import of some packages fail, and gives stand-ins for the modules of others; keeps what it has given."""

    def __init__(self, hidden: Collection[str], later: Collection[str]) -> None:
        self._hidden, self._later = hidden, later
        self.given: list[_Later] = []

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        found = name.partition(".")[0] in (*self._hidden, *self._later)
        return ModuleSpec(name, self, is_package=True) if found else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        if spec.name.partition(".")[0] in self._hidden:
            raise ModuleNotFoundError(f"No module named {spec.name!r} while Keras is imported", name=spec.name)
        self.given.append(_Later(spec.name))
        return self.given[-1]

    def exec_module(self, module: ModuleType) -> None:
        return


@contextlib.contextmanager
def lean(*, hidden: Collection[str], later: Collection[str] = ("matplotlib", "pandas")) -> Iterator[None]:
    """In this block some packages seem not to be installed; after it an import is the usual one.

    Parameters
    ----------
    hidden : collection of str
        Importing these fails. What Keras makes of them is missing in this process.
    later : collection of str
        Importing these or their modules gives what stands for them until it is used.
    """
    finder = _Finder(hidden, [one for one in later if one not in sys.modules])
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for module in finder.given:
            module.blocked = False
            sys.modules.pop(module.__name__, None)


@contextlib.contextmanager
def without_tensorflow() -> Iterator[None]:
    """In this block Keras takes TensorFlow for absent, unless it is loaded.

    It would import it on every backend, which takes 2 s, to seed it too, and to ask whether what it writes down is
    TensorFlow's.
    """
    from keras.src.utils import module_utils

    module = module_utils.tensorflow
    if "tensorflow" in sys.modules or not hasattr(module, "_available"):
        yield
        return
    before, module._available = module._available, False
    try:
        yield
    finally:
        module._available = before
