"""A fit's settings against its features and against the model to go on from.

The driver asks where the columns tell, a rank where only the rows do.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xgboost as xgb

from sparktrain.errors import ParamError
from sparktrain.xgboost import boosters

SAME_MARGINS = (
    {"reg:squarederror", "reg:linear", "reg:absoluteerror", "reg:pseudohubererror"},
    {"binary:logistic", "binary:logitraw", "reg:logistic"},
    {"multi:softprob", "multi:softmax"},
    {"count:poisson", "reg:gamma", "reg:tweedie"},
    {"rank:ndcg", "rank:map", "rank:pairwise"},
)
"""Objectives whose boosters predict the same quantity before its last step, so that one can go on from another."""


def constraints(params: Mapping[str, Any], names: Sequence[str] | None, width: int | None) -> dict[str, Any]:
    """Interaction constraints as XGBoost takes them: by name where the features have names.

    Parameters
    ----------
    params : mapping
        The booster's.
    names : sequence of str or None
    width : int or None
        Number of features; None: not known yet.

    Raises
    ------
    ParamError
        Where these or the monotone constraints don't fit the features.
    """
    width = width if names is None else len(names)
    monotone, interaction = (_literal(params.get(f"{kind}_constraints")) for kind in ("monotone", "interaction"))
    if isinstance(monotone, (list, tuple)) and width is not None and len(monotone) != width:
        raise ParamError(f"monotone_constraints has {len(monotone)} entries for {width} features")
    named = [*monotone] if isinstance(monotone, Mapping) else []
    found: dict[str, Any] = {}
    if isinstance(interaction, (list, tuple)):
        if not all(isinstance(group, (list, tuple)) for group in interaction):
            raise ParamError(
                f"interaction_constraints: expected a list of lists of features, one a group, got {interaction}"
            )
        features = [one for group in interaction for one in group]
        named += [one for one in features if isinstance(one, str)]
        outside = [one for one in features if isinstance(one, int) and not 0 <= one < (width or one + 1)]
        if outside:
            counted = "features are counted from 0" if width is None else f"the features are 0 to {width - 1}"
            raise ParamError(f"interaction_constraints names feature {outside[0]}, but {counted}")
        found["interaction_constraints"] = [
            [names[one] if names is not None and isinstance(one, int) else one for one in group]
            for group in interaction
        ]
    unknown = [one for one in named if one not in (names or ())]
    if unknown:
        known = f"the features are {list(names)}" if names else "the features have no names (feature_names gives some)"
        raise ParamError(f"constraints name {unknown[0]!r}, but {known}")
    return found


def check_start(
    start: xgb.Booster, names: Sequence[str] | None, width: int | None, objective: str | None, *, classifier: bool
) -> None:
    """The model to go on from, against the features and the objective.

    Raises
    ------
    ParamError
        Where it has other features, or margins that mean something else.
    """
    before = boosters.objective_of(start)
    if classifier and not boosters.classifies(before):
        raise ParamError(
            f"xgb_model was trained with objective={before!r}, which is not a classifier's; give a classifier's model"
        )
    alike = objective in (None, before) or any({objective, before} <= objectives for objectives in SAME_MARGINS)
    if not alike:
        raise ParamError(
            f"xgb_model was trained with objective={before!r}, whose margins mean something else than those of "
            f"objective={objective!r}: set objective={before!r}, or train without xgb_model"
        )
    if width is not None and width != start.num_features():
        raise ParamError(
            f"xgb_model was trained on {start.num_features()} features, but those of features_col are {width}"
        )
    known = start.feature_names
    if known is not None and (names is None or list(names) != known):
        given = "have no names" if names is None else f"are {list(names)}"
        raise ParamError(
            f"xgb_model was trained on {known}, in this order, but the features of features_col {given}; give it "
            "those, rename columns, or set feature_names to the model's names to say that they are the same"
        )


def outputs_of(params: Mapping[str, Any], targets: int) -> int:
    """Margins of a row: one a class, quantile or target.

    Parameters
    ----------
    params : mapping
        What `xgboost.train` is given, ``num_class`` included.
    targets : int
        Width of the label.
    """
    if "num_class" in params:
        return int(params["num_class"])
    alphas = {"reg:quantileerror": "quantile_alpha", "reg:expectileerror": "expectile_alpha"}
    alpha = _literal(params.get(alphas.get(str(params["objective"]), "")))
    return targets if alpha is None else int(np.size(alpha))


def _literal(value: Any) -> Any:
    """XGBoost takes strings for all its parameters: the list or tuple that one writes."""
    if not isinstance(value, str):
        return value
    try:
        return ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return value
