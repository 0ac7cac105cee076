"""One rank of a gang without Spark: ``python -m tests.torch.rank FUNCTION RANK WORLD HOST PORT FD OUT BACKEND``.

FUNCTION is ``module:name``; it is given the `Collective`, and what it returns is saved for the test.
"""

from __future__ import annotations

import importlib
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from sparktrain import backends
from sparktrain.gang.spec import Gang
from sparktrain.torch.collective import joining

ROOT = Path(__file__).resolve().parents[2]


def run_ranks(function: str, world: int, out: Path, timeout_s: float = 120, backend: str = "native") -> list[Any]:
    """Run `function` on `world` ranks, one process each; returns what each returned, in rank order."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        os.set_inheritable(listener.fileno(), True)
        address = ["127.0.0.1", str(listener.getsockname()[1]), str(listener.fileno()), str(out), backend]
        ranks = [
            subprocess.Popen(
                [sys.executable, "-m", "tests.torch.rank", function, str(rank), str(world), *address],
                cwd=ROOT,
                pass_fds=[listener.fileno()],
            )
            for rank in range(world)
        ]
        try:
            codes = [process.wait(timeout_s) for process in ranks]
        finally:
            for process in ranks:
                process.kill()
    assert codes == [0] * world
    return [torch.load(out / f"{rank}.pt", weights_only=False) for rank in range(world)]


def main() -> None:
    module, _, name = sys.argv[1].partition(":")
    rank, world, port, fd = int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[5]), int(sys.argv[6])
    torch.set_num_threads(1)
    gang = Gang(rank, (sys.argv[4],) * world, (sys.argv[4], port), collective_timeout_s=60)
    backends.load(sys.argv[8]).prepare(gang)
    with joining(sys.argv[8])(gang, fd if rank == 0 else None) as collective:
        result = getattr(importlib.import_module(module), name)(collective)
    torch.save(result, f"{sys.argv[7]}/{rank}.pt")


if __name__ == "__main__":
    main()
    os._exit(0)  # as the worker does: see `sparktrain.torch.collective.join`
