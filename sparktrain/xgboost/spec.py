"""What the XGBoost trainer is told, as frozen data; imports neither xgboost nor pyspark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Task = Literal["classification", "regression", "ranking"]

DEFAULT_OBJECTIVES = {"regression": "reg:squarederror", "ranking": "rank:ndcg"}
"""As XGBoost's own estimators have them; a classifier's follows the number of classes."""

NO_GPU = (
    "device='cuda', but Spark assigns this gang's tasks no GPU; set spark.executor.resource.gpu.amount, "
    "spark.task.resource.gpu.amount and a discovery script, or leave device='cpu'"
)


@dataclass(frozen=True)
class Features:
    """What is known of the features before the data is.

    Parameters
    ----------
    names : tuple of str or None
    types : tuple of str or None
        As XGBoost writes them: ``c`` is categorical, ``q`` quantitative. None: see `categorical`.
    categorical : tuple of int
        Positions of the categorical features, from Spark's column metadata.
    weights : tuple of float or None
        For the sampling of columns.
    missing : float
        The value that means missing, beside NaN.
    """

    names: tuple[str, ...] | None
    types: tuple[str, ...] | None
    categorical: tuple[int, ...]
    weights: tuple[float, ...] | None
    missing: float

    def types_of(self, width: int) -> list[str] | None:
        """One type a feature where any is declared or categorical."""
        if self.types is not None:
            return list(self.types)
        if not self.categorical:
            return None
        return ["c" if number in self.categorical else "q" for number in range(width)]


@dataclass(frozen=True)
class BoosterSpec:
    """A fit's settings.

    Parameters
    ----------
    task : str
    params : mapping
        What `xgboost.train` takes as ``params``, as the user gave it.
    rounds : int
    early_stopping_rounds : int or None
    training_metrics : bool
        Whether metrics are computed on the training rows too, after each round.
    features : Features
    validation : float or None
        Fraction of rows to hold out; a validation column is a tensor of the shard instead.
    seed : int
        Of the validation draw.
    device : str
        ``cpu`` or ``cuda``.
    external_memory : bool
        Whether quantised pages lie on disk.
    dealt : bool
        True where sparktrain has dealt the rows to the ranks, a query's to one rank; False: the user has.
    classes : tuple of float or None
        Of the model to go on from.
    retries : int or None
        How often a rank tries to connect to another; None: XGBoost's default.
    """

    task: Task
    params: Mapping[str, Any]
    rounds: int
    early_stopping_rounds: int | None
    training_metrics: bool
    features: Features
    validation: float | None
    seed: int
    device: str
    external_memory: bool
    dealt: bool
    classes: tuple[float, ...] | None
    retries: int | None


def is_quantised(params: Mapping[str, Any]) -> bool:
    """Whether these parameters train on quantile bins: ``hist`` trees; the others need the values themselves."""
    return params.get("tree_method", "auto") in ("auto", "hist") and params.get("booster", "gbtree") != "gblinear"


def device_of(wanted: str, gang_device: str) -> str:
    """The device XGBoost is given: ``cuda`` is the first GPU that the worker sees, the one Spark assigned.

    Raises
    ------
    ValueError
        Where a GPU is wanted and Spark has assigned none.
    """
    if wanted == "cuda" and gang_device != "cuda":
        raise ValueError(NO_GPU)
    return "cuda:0" if wanted == "cuda" else "cpu"
