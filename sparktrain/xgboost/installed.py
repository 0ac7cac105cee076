"""What the installed XGBoost knows: its parameters' names, and whether it takes their values."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import numpy as np
import xgboost as xgb

from sparktrain.errors import ParamError

DECLARED = frozenset(
    {
        "callbacks",
        "device",
        "early_stopping_rounds",
        "enable_categorical",
        "eval_metric",
        "feature_types",
        "feature_weights",
        "importance_type",
        "missing",
        "n_estimators",
        "n_jobs",
        "objective",
        "random_state",
    }
)
"""Of `xgboost.XGBModel`, those that `sparktrain.xgboost.params` declares, or the gang decides."""

STATE = frozenset(
    {
        "alpha",
        "eta",
        "fail_on_invalid_gpu_id",
        "lambda",
        "metrics",
        "min_split_loss",
        "name",
        "nthread",
        "num_class",
        "num_feature",
        "num_target",
        "num_trees",
        "seed",
        "specified_updater",
        "updater_seq",
        "version",
    }
)
"""Of a booster's configuration, what is no parameter, an alias, or decided by the gang."""

_CONFIGURATIONS: tuple[Mapping[str, Any], ...] = (
    {},
    {"booster": "dart"},
    {"booster": "gblinear", "updater": "coord_descent"},
    {"tree_method": "approx"},
    *({"objective": name} for name in ("rank:ndcg", "reg:tweedie", "reg:pseudohubererror", "survival:aft")),
    {"objective": "reg:quantileerror", "quantile_alpha": 0.5},
    {"objective": "reg:expectileerror", "expectile_alpha": 0.5},
)
_UNUSED = re.compile(r"Parameters: \{(.*?)\} are not used", re.DOTALL)


@cache
def booster_names() -> tuple[str, ...]:
    """XGBoost's own parameters by name, but for those in `DECLARED`."""
    names = set(xgb.XGBModel().get_params())
    for configuration in _CONFIGURATIONS:
        try:
            config = json.loads(_configured(configuration))
        except (xgb.core.XGBoostError, ValueError):
            continue  # an objective that this version does not have
        names |= set(_leaves(config))
    names |= {name for name in ("quantile_alpha", "expectile_alpha") if _takes(name)}
    return tuple(sorted(names - DECLARED - STATE))


@cache
def _descriptions() -> Mapping[str, str]:
    """What the docstring of XGBoost's estimators says of each parameter: its first paragraph."""
    found = re.findall(r"^ {4}(\w+) ?: [^\n]*\n\n?((?: {5,}[^\n]+\n)+)", xgb.XGBModel.__doc__ or "", re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in found}


def description(name: str) -> str:
    """One of XGBoost's own parameters in its words."""
    return _descriptions().get(name, "XGBoost's own; see its documentation.")


def _takes(name: str) -> bool:
    objective = {"quantile_alpha": "reg:quantileerror", "expectile_alpha": "reg:expectileerror"}[name]
    try:
        _configured({"objective": objective, name: 0.5})
    except (xgb.core.XGBoostError, ValueError):
        return False
    return True


def _leaves(config: Mapping[str, Any]) -> Iterator[str]:
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from _leaves(value)
        elif not isinstance(value, list):
            yield key


def _configured(params: Mapping[str, Any]) -> str:
    """The configuration of a booster with these parameters; it has to see a matrix, which it does not keep alive."""
    tiny = xgb.DMatrix(np.zeros((1, 1), np.float32), label=np.zeros(1, np.float32), nthread=1)
    return str(xgb.Booster({**params, "nthread": 1}, [tiny]).save_config())


def check_values(params: Mapping[str, Any]) -> None:
    """Let XGBoost look at parameters and their values, on the driver.

    Warns
    -----
    UserWarning
        Names parameters that XGBoost does not use with the others.

    Raises
    ------
    ParamError
        With what XGBoost says of a name or value.
    """
    given = {name: value for name, value in params.items() if name not in ("device", "num_class")}
    for name in ("monotone_constraints", "interaction_constraints"):  # by feature name: the booster needs them all
        if isinstance(given.get(name), (dict, list)):
            given.pop(name)
    if str(given.get("objective", "")).startswith("multi:"):
        given["num_class"] = 2
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            _configured({**given, "validate_parameters": True})
        except (xgb.core.XGBoostError, ValueError, TypeError) as error:
            text = str(error).partition("Stack trace:")[0].strip()
            raise ParamError(f"XGBoost {xgb.__version__} does not take these parameters: {_plain(text)}") from None
    for warning in caught:
        unused = _UNUSED.search(str(warning.message))
        if unused:
            names = unused[1].strip()
            warnings.warn(f"XGBoost does not use {names} with the other parameters given", UserWarning, stacklevel=5)


def _plain(text: str) -> str:
    """Without the time and source line that XGBoost's messages begin with."""
    return re.sub(r"\s*\n(Objective candidate: )?", ", ", re.sub(r"^\[[\d:]+\] \S+: ", "", text))
