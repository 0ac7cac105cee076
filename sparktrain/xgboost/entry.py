"""What the gang's workers import and call: the trainer, with XGBoost loaded in a quarter of the time.

XGBoost imports scikit-learn, for its estimators, where it is installed; that takes 1.5 of 2 seconds of each worker,
while its task spools. No trainer uses those estimators. Only these processes load XGBoost so: they end with the fit.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def _absent(module: str) -> Iterator[None]:
    """Imports of a module fail, unless it is loaded already; afterwards they work."""
    if module in sys.modules:
        yield
        return
    sys.modules[module] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[module]


with _absent("sklearn"):
    from sparktrain.xgboost.trainer import train

__all__ = ["train"]
