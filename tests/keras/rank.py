"""One rank of a gang without Spark, on one of Keras's backends: ``python -m tests.keras.rank FUNCTION …``.

FUNCTION is ``module:name``; it is given the peers and the backend's tensors, and what it returns is saved for the test.
"""

from __future__ import annotations

import importlib
import os
import pickle
import socket
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def run_ranks(
    framework: str,
    function: str,
    world: int,
    out: Path,
    timeout_s: float = 420,
    devices: int = 1,
    backend: str = "native",
) -> list[Any]:
    """Run `function` on `world` ranks, one process each; returns what each returned, in rank order."""
    env = {**os.environ, "KERAS_BACKEND": framework, "TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1"}
    if devices > 1:
        env["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={devices}"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        os.set_inheritable(listener.fileno(), True)
        address = ["127.0.0.1", str(listener.getsockname()[1]), str(listener.fileno()), str(out), backend]
        ranks = [
            subprocess.Popen(
                [sys.executable, "-m", "tests.keras.rank", function, str(rank), str(world), *address],
                cwd=ROOT,
                env=env,
                pass_fds=[listener.fileno()],
            )
            for rank in range(world)
        ]
        try:
            deadline = time.monotonic() + timeout_s
            while any(process.poll() is None for process in ranks):  # the others wait for one that failed
                if any(process.poll() for process in ranks) or time.monotonic() > deadline:
                    break
                time.sleep(0.1)
        finally:
            for process in ranks:
                process.kill()
                process.wait(30)
    assert [process.returncode for process in ranks] == [0] * world
    return [pickle.loads((out / f"{rank}.pkl").read_bytes()) for rank in range(world)]


def main() -> None:
    from sparktrain import backends
    from sparktrain.gang.spec import Gang
    from sparktrain.keras.join import join

    module, _, name = sys.argv[1].partition(":")
    rank, world, port, fd = int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[5]), int(sys.argv[6])
    gang = Gang(rank, (sys.argv[4],) * world, (sys.argv[4], port), collective_timeout_s=60)
    backends.load(sys.argv[8]).prepare(gang)
    with join(gang, fd if rank == 0 else None, sys.argv[8]) as (peers, tensors):
        try:
            result = getattr(importlib.import_module(module), name)(peers, tensors)
        except BaseException:
            traceback.print_exc()
            os._exit(1)  # without waiting for the others
    Path(sys.argv[7], f"{rank}.pkl").write_bytes(pickle.dumps(result))


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # as the worker does
