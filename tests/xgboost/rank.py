"""A rank of a gang without Spark, inside XGBoost's collective, that is given rank and world size."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from sparktrain.xgboost.communicator import join
from tests import ranks
from tests.ranks import Place


def run_ranks(function: str, world: int, out: Path, timeout_s: float = 240) -> list[Any]:
    return ranks.run_ranks(__name__, function, world, out, timeout_s, environment={"OMP_NUM_THREADS": "1"})


def main(place: Place) -> None:
    warnings.filterwarnings("ignore", ".*Empty dataset at worker", UserWarning)  # as the trainer's entry does
    with join(place.gang, place.listen_fd):
        place.run(place.rank, place.world)


if __name__ == "__main__":
    ranks.be_one(main)
