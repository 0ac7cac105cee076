"""Values of a tuner's grid that JSON can't hold: callables, modules, dicts of them.

``CrossValidator.save`` and its kin write each value of their grid as JSON, unless it is a `Transformer`:
that one they save as a stage in a directory of its own, and load it again by the class named there. So
``ParamGridBuilder``, which passes each value through its Param, gets the value inside such a transformer.
"""

from __future__ import annotations

from typing import Any

from pyspark.ml.base import Transformer
from pyspark.sql import DataFrame

from sparktrain.params import Holder
from sparktrain.persistence import Saveable


class HeldValue(Holder, Transformer, Saveable):
    """A value of a grid, which looks like the value itself; a subclass saves what its framework's values are.

    Attributes
    ----------
    value : object
        What the user put into the grid.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the value."""
        return self.value(*args, **kwargs)

    def __repr__(self) -> str:
        return repr(self.value)

    def _transform(self, dataset: DataFrame) -> DataFrame:
        raise TypeError(f"{self!r} is a value of a parameter grid: it transforms nothing")
