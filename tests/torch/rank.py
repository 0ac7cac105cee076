"""A rank of a gang without Spark that is given the `Collective`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from sparktrain.torch.collective import joining
from tests import ranks
from tests.ranks import Place


def run_ranks(function: str, world: int, out: Path, timeout_s: float = 120, backend: str = "native") -> list[Any]:
    return ranks.run_ranks(__name__, function, world, out, timeout_s, backend)


def main(place: Place) -> None:
    torch.set_num_threads(1)
    with joining(place.backend)(place.gang, place.listen_fd) as collective:
        place.run(collective)


if __name__ == "__main__":
    ranks.be_one(main)
