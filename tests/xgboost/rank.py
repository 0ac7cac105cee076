"""One rank of a gang without Spark: ``python -m tests.xgboost.rank FUNCTION RANK WORLD HOST PORT FD OUT``.

FUNCTION is ``module:name``; it is called with rank and world size inside XGBoost's collective, and what it returns
is pickled for the test.
"""

from __future__ import annotations

import importlib
import os
import pickle
import socket
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

from sparktrain.gang.spec import Gang
from sparktrain.xgboost.communicator import join

ROOT = Path(__file__).resolve().parents[2]


def run_ranks(function: str, world: int, out: Path, timeout_s: float = 240) -> list[Any]:
    """Run `function` on `world` ranks, one process each; returns what each returned, in rank order."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        os.set_inheritable(listener.fileno(), True)
        address = ["127.0.0.1", str(listener.getsockname()[1]), str(listener.fileno()), str(out)]
        ranks = [
            subprocess.Popen(
                [sys.executable, "-m", "tests.xgboost.rank", function, str(rank), str(world), *address],
                cwd=ROOT,
                pass_fds=[listener.fileno()],
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
            for rank in range(world)
        ]
        try:
            codes = [process.wait(timeout_s) for process in ranks]
        finally:
            for process in ranks:
                process.kill()
    assert codes == [0] * world
    return [pickle.loads((out / f"{rank}.pickle").read_bytes()) for rank in range(world)]


def main() -> None:
    module, _, name = sys.argv[1].partition(":")
    rank, world, port, fd = int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[5]), int(sys.argv[6])
    warnings.filterwarnings("ignore", ".*Empty dataset at worker", UserWarning)  # as the trainer's entry does
    gang = Gang(rank, (sys.argv[4],) * world, (sys.argv[4], port), collective_timeout_s=60)
    with join(gang, fd if rank == 0 else None):
        result = getattr(importlib.import_module(module), name)(rank, world)
    Path(sys.argv[7], f"{rank}.pickle").write_bytes(pickle.dumps(result))


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # as the worker does
