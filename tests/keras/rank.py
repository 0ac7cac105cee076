"""A rank of a gang without Spark, on one of Keras's backends, that is given the peers and the backend's tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests import ranks
from tests.ranks import Place


def run_ranks(
    framework: str,
    function: str,
    world: int,
    out: Path,
    timeout_s: float = 420,
    devices: int = 1,
    backend: str = "native",
) -> list[Any]:
    environment = {"KERAS_BACKEND": framework, "TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1"}
    if devices > 1:
        environment["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={devices}"
    return ranks.run_ranks(__name__, function, world, out, timeout_s, backend, environment)


def main(place: Place) -> None:
    from sparktrain.keras.join import join  # late: the test's own process has its own backend

    with join(place.gang, place.listen_fd, place.backend) as (peers, tensors):
        place.run(peers, tensors)


if __name__ == "__main__":
    ranks.be_one(main)
