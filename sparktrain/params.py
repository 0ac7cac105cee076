"""Spark ML Params with snake_case keywords: each knob is declared once, as a `GangParam`.

A mixin declares ``numProc = GangParam("num_proc", …)``. From that one line come the Spark ML Param
``numProc``, the constructor keyword ``num_proc``, ``setNumProc``/``getNumProc``, the default, the
check of every value, and the entry in the class's docstring and signature.
"""

from __future__ import annotations

import difflib
import inspect
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar, TypeVar

import numpy as np
from pyspark.ml.param import Param, Params

from sparktrain.errors import ParamError

REQUIRED: Any = object()
"""Default of a Param that has none: the user must give it."""

Convert = Callable[[Any], Any]
P = TypeVar("P", bound="KeywordParams")


def camel_case(snake: str) -> str:
    """``num_proc`` -> ``numProc``."""
    head, *rest = snake.split("_")
    return head + "".join(word.capitalize() for word in rest)


class Holder:
    """Carries a ``by_value`` Param's value through code of pyspark that writes values as JSON; see `sparktrain.held`.

    Only grids hold it. An estimator or model takes the value out at once, so that its accessors and maps
    give back the very object that the user gave.
    """

    def __init__(self, value: Any = None) -> None:
        super().__init__()
        self.value = value


def released(value: Any) -> Any:
    """What a `Holder` holds; any other value as it is."""
    return value.value if isinstance(value, Holder) else value


class GangParam(Param[Any]):
    """One knob of an estimator or model.

    Parameters
    ----------
    keyword : str
        The snake_case constructor keyword; the Param's name is its camelCase form.
    doc : str
        What it does, for ``explainParams()`` and the class's docstring.
    convert : callable
        Maps a given value to the stored one; raises ``ValueError`` saying what was expected.
    default : object
        Stored as the Spark ML default; `REQUIRED` for none.
    aliases : tuple of str
        Further keywords that mean the same.
    by_value : bool
        True for Python objects (models, losses) that JSON metadata can't hold.
    """

    def __init__(
        self,
        keyword: str,
        doc: str,
        convert: Convert,
        default: Any = REQUIRED,
        *,
        aliases: tuple[str, ...] = (),
        by_value: bool = False,
    ) -> None:
        super().__init__(Params._dummy(), camel_case(keyword), doc, self._checked)
        self.keyword = keyword
        self.convert = convert
        self.default = default
        self.aliases = aliases
        self.by_value = by_value

    def _copy_new_parent(self, parent: Any) -> Param[Any]:
        own = super()._copy_new_parent(parent)
        if self.by_value and parent._holder is not None:
            own.typeConverter = partial(_held, self._checked, parent._holder)
        return own

    def _checked(self, value: Any) -> Any:
        value = released(value)
        if value is None and self.default is None:
            return None
        try:
            return self.convert(value)
        except (TypeError, ValueError) as error:
            raise ParamError(f"{self.keyword}: expected {error}, got {value!r} ({type(value).__name__})") from None


def _held(check: Convert, holder: type[Holder], value: Any) -> Any:
    """`ParamGridBuilder` builds its grid from what this gives, so that tuners can save it."""
    checked = check(value)
    return None if checked is None else holder(checked)


class KeywordParams(Params):
    """Base of everything with `GangParam` knobs: keyword constructor, accessors, checked values."""

    _keywords: ClassVar[dict[str, GangParam]] = {}
    _refused: ClassVar[dict[str, str]] = {}
    """Keywords that users of the framework know and that have no place here: what to do instead."""
    _holder: ClassVar[type[Holder] | None] = None
    """What makes ``by_value`` values of a grid savable; None: such a grid trains, and isn't saved."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        declared = {k: p for base in reversed(cls.__mro__) for k, p in vars(base).items() if isinstance(p, GangParam)}
        for param in list(vars(cls).values()):
            if isinstance(param, GangParam):
                _add_accessors(cls, param)
        ordered = sorted(declared.values(), key=lambda p: (p.default is not REQUIRED, p.keyword))
        cls._keywords = {key: p for p in ordered for key in (p.keyword, *p.aliases)}
        if "Parameters\n" not in (cls.__doc__ or "") and not cls.__name__.startswith("Has"):
            cls.__doc__ = f"{inspect.cleandoc(cls.__doc__ or '')}\n\n{_parameters_section(ordered)}"
        cls.__signature__ = _signature(ordered)  # type: ignore[attr-defined]

    def __init__(self, *positional: Any, **keywords: Any) -> None:
        super().__init__()
        if positional:
            raise TypeError(f"{type(self).__name__} takes keyword arguments only: {', '.join(self._keywords)}")
        defaults = {p.name: p.default for p in self._keywords.values() if p.default is not REQUIRED}
        self._setDefault(**defaults)
        self.setParams(**keywords)

    def setParams(self: P, **keywords: Any) -> P:
        """Set several Params by keyword, snake_case or camelCase; `None` leaves one unset.

        Raises
        ------
        ParamError
            For an unknown keyword (the message names the nearest) or a value of the wrong kind.
        """
        by_name = {p.name: p for p in self._keywords.values()}
        given: dict[str, str] = {}
        for keyword, value in keywords.items():
            param = self._keywords.get(keyword) or by_name.get(keyword)
            if param is None and keyword in self._refused:
                raise ParamError(f"{type(self).__name__} takes no {keyword!r}: {self._refused[keyword]}")
            if param is None:
                raise ParamError(_unknown_keyword(type(self).__name__, keyword, [*self._keywords, *by_name]))
            if value is None:
                continue
            if param.name in given:
                raise ParamError(f"{keyword} and {given[param.name]} are the same parameter; give one of them")
            given[param.name] = keyword
            self._set(**{param.name: value})
        return self

    def _value(self, param: Param[Any]) -> Any:
        """The value in force, checked again: a param map given to ``fit`` skips the converters."""
        own = self._resolveParam(param)
        if not self.isDefined(own):
            keyword = own.keyword if isinstance(own, GangParam) else own.name
            raise ParamError(f"{type(self).__name__} needs {keyword}: {own.doc}")
        return released(own.typeConverter(self.getOrDefault(own)))

    def set(self, param: Param[Any], value: Any) -> None:
        super().set(param, value)
        self._release()

    def _set(self: P, **kwargs: Any) -> P:
        super()._set(**kwargs)
        return self._release()

    def _setDefault(self: P, **kwargs: Any) -> P:
        super()._setDefault(**kwargs)
        return self._release()

    def _release(self: P) -> P:
        for values in (self._paramMap, self._defaultParamMap):
            values.update({param: released(value) for param, value in values.items()})
        return self

    def extractParamMap(self, extra: dict[Param[Any], Any] | None = None) -> dict[Param[Any], Any]:
        """Defaults, set values and `extra` in one map, the latter before the former."""
        return {param: released(value) for param, value in super().extractParamMap(extra).items()}

    def __getattr__(self, name: str) -> Any:
        """A Param by its keyword or an alias: ``estimator.num_proc`` and ``estimator.numWorkers`` are ``numProc``."""
        keywords = type(self)._keywords
        param = keywords.get(name) or next((p for key, p in keywords.items() if camel_case(key) == name), None)
        if param is None or param.name == name:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self, param.name)


def _add_accessors(cls: type, param: GangParam) -> None:
    def setter(self: P, value: Any) -> P:
        return self._set(**{param.name: value})

    def getter(self: KeywordParams) -> Any:
        return self.getOrDefault(param.name)

    setter.__doc__ = f"Set ``{param.keyword}``: {param.doc}"
    getter.__doc__ = f"The value of ``{param.keyword}`` or its default."
    for keyword in (param.keyword, *param.aliases):
        camel = camel_case(keyword)
        for name, accessor in (
            (f"set{camel[0].upper()}{camel[1:]}", setter),
            (f"get{camel[0].upper()}{camel[1:]}", getter),
        ):
            if name not in vars(cls):
                setattr(cls, name, accessor)


def _parameters_section(params: list[GangParam]) -> str:
    lines = ["Parameters", "----------"]
    for param in params:
        default = "" if param.default is REQUIRED else f", default {param.default!r}"
        also = f", also {', '.join(param.aliases)}" if param.aliases else ""
        lines += [f"{param.keyword}{also}{default}", f"    {param.doc}"]
    return "\n".join(lines)


def _signature(params: list[GangParam]) -> inspect.Signature:
    keyword_only = inspect.Parameter.KEYWORD_ONLY
    return inspect.Signature(
        [
            inspect.Parameter(p.keyword, keyword_only, default=None if p.default is REQUIRED else p.default)
            for p in params
        ]
    )


def _unknown_keyword(owner: str, keyword: str, known: list[str]) -> str:
    nearest = difflib.get_close_matches(keyword, known, n=1, cutoff=0.5)
    hint = (
        f"did you mean {nearest[0]!r}?"
        if nearest
        else f"known: {', '.join(sorted({key for key in known if key.islower()}))}"
    )
    return f"{owner} has no parameter {keyword!r}; {hint}"


# Converters. Each raises ValueError with what was expected: GangParam adds the keyword and what came.


def integer(at_least: int) -> Convert:
    def convert(value: Any) -> int:
        if isinstance(value, bool) or not hasattr(value, "__index__") or int(value) < at_least:
            raise ValueError(f"a whole number of at least {at_least}")
        return int(value)

    return convert


def verbosity(value: Any) -> int:
    """A level from 0; True is 1, as XGBoost's and Keras's users write it."""
    return int(value) if isinstance(value, bool) else int(integer(0)(value))


def number(above: float = float("-inf"), *, at_least: float = float("-inf")) -> Convert:
    bound = f"above {above:g}" if above != float("-inf") else f"of at least {at_least:g}"

    def convert(value: Any) -> float:
        if isinstance(value, (bool, str)) or not hasattr(value, "__float__"):
            raise ValueError(f"a number {bound}")
        if not (float(value) > above and float(value) >= at_least and math.isfinite(value)):
            raise ValueError(f"a number {bound}, and finite")
        return float(value)

    return convert


def boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("True or False")
    return value


def string(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("a non-empty string")
    return value


def one_of(*choices: str) -> Convert:
    def convert(value: Any) -> str:
        if value not in choices:
            raise ValueError(f"one of {', '.join(map(repr, choices))}")
        return str(value)

    return convert


def gradient_compression(value: Any) -> str | None:
    """ "fp16", or None; also as Horovod's compressors, which are classes."""
    name = getattr(value, "__name__", value)
    if name in ("none", "NoneCompressor"):
        return None
    if name in ("fp16", "FP16Compressor"):
        return "fp16"
    raise ValueError("'fp16', or None")


def column_names(value: Any) -> list[str]:
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, (list, tuple)) or not value or not all(isinstance(v, str) and v for v in value):
        raise ValueError("a list of column names")
    return list(value)


def column_groups(value: Any) -> list[str | list[str]] | dict[str, str | list[str]]:
    """Column names, where a nested list of names is one input made of several columns; or a dict of those."""
    if isinstance(value, Mapping):
        if not value or not all(isinstance(key, str) and key for key in value):
            raise ValueError("a dict of columns keyed by the model's argument")
        return dict(zip(value, _groups(list(value.values())), strict=True))
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, (list, tuple)) or not value:
        raise ValueError("a list of column names (nest names in a list to join them into one input), or a dict")
    return _groups(value)


def _groups(value: Any) -> list[str | list[str]]:
    return [column_names(v) if isinstance(v, (list, tuple)) else string(v) for v in value]


def shuffle(value: Any) -> str | bool:
    """ "local", "global" or False; True is "local"."""
    if value is True or value == "local":
        return "local"
    if value is False or (isinstance(value, str) and value == "global"):
        return value
    raise ValueError("'local' (or True), 'global' or False")


def padding(value: Any) -> int | str | dict[str, int | str]:
    """A length, "longest", or a dict of those by column."""
    if isinstance(value, Mapping):
        return {string(name): _length(one) for name, one in value.items()}
    return _length(value)


def _length(value: Any) -> int | str:
    if value == "longest":
        return "longest"
    try:
        return int(integer(1)(value))
    except ValueError:
        raise ValueError("'longest', a length of at least 1, or a dict of those by column") from None


def mapping(value_converter: Convert) -> Convert:
    def convert(value: Any) -> dict[str, Any]:
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            raise ValueError("a dict keyed by name")
        return {key: value_converter(item) for key, item in value.items()}

    return convert


def shape(value: Any) -> tuple[int, ...]:
    if isinstance(value, int):
        value = (value,)
    if not isinstance(value, (list, tuple)) or not value:
        raise ValueError("a shape: a tuple of whole numbers of at least 1")
    return tuple(integer(1)(size) for size in value)


def dtype_name(value: Any) -> str:
    """The name of a NumPy dtype of numbers or booleans: ``"float64"``, `numpy.uint8`, `numpy.dtype`."""
    try:
        found = np.dtype(value)
    except TypeError:
        raise ValueError("a NumPy dtype name such as 'float32' or 'uint8'") from None
    if found.kind not in "fiub":
        raise ValueError("a NumPy dtype of numbers or booleans")
    return str(found.name)


def fraction_or_column(value: Any) -> float | str:
    if isinstance(value, str) and value:
        return value
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < 1:
        return float(value)
    raise ValueError("a fraction between 0 and 1, or the name of a boolean column (true: validation)")


def anything(value: Any) -> Any:
    return value


def function(value: Any) -> Any:
    if not callable(value):
        raise ValueError("a callable")
    return value


def labels(value: Any) -> list[float]:
    if not isinstance(value, (list, tuple)) or not value:
        raise ValueError("a list of numbers")
    return [number()(one) for one in value]


def numbers(value: Any) -> list[float]:
    if not isinstance(value, (list, tuple)) or not value:
        raise ValueError("a list of numbers")
    return [number(at_least=0)(one) for one in value]
