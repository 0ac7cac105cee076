"""Trainers that end in every way one can, for real worker processes; they import nothing heavy."""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from typing import Any

from sparktrain.errors import DataError
from sparktrain.gang.worker import WorkerContext

FOREVER_S = 3600


def finish(context: WorkerContext) -> dict[str, Any]:
    """Two events, a result file and a return value."""
    for step in (1, 2):
        context.emit({"kind": "progress", "step": step})
    os.write(context.job.result_fd, b"weights")
    return {"rank": context.gang.rank, "rows": context.job.rows, "payload": context.payload["greeting"]}


def environment(context: WorkerContext) -> dict[str, Any]:
    """What the worker finds around itself."""
    return {
        "environ": dict(os.environ),
        "sys.path": sys.path,
        "cwd": os.getcwd(),
        "leads its group": os.getpgid(0) == os.getpid(),
        "open files": open_inodes(),
    }


def open_inodes() -> set[int]:
    """Inode numbers of all that this process holds open."""
    found = set()
    for name in os.listdir("/dev/fd"):
        with contextlib.suppress(OSError):  # the descriptor of the listing itself
            found.add(os.fstat(int(name)).st_ino)
    return found


def device(context: WorkerContext) -> dict[str, Any]:
    """Where it would compute, without a framework that looks for the device."""
    return {"device": context.gang.device, "visible": os.environ.get("CUDA_VISIBLE_DEVICES")}


def fail(context: WorkerContext) -> None:
    print("last words on stdout")
    print("last words on stderr", file=sys.stderr)
    raise ValueError("bad batch")


def fail_with_own_error(context: WorkerContext) -> None:
    raise DataError("column 'y': 3 null rows")


def fail_with_a_namesake(context: WorkerContext) -> None:
    """Its exception is called like one of sparktrain's, as `pandas.errors.DataError` is."""
    raise type("DataError", (Exception,), {"__module__": "pandas.errors"})("no numeric types to aggregate")


def meet_the_end_of_a_file(context: WorkerContext) -> None:
    raise EOFError("the user's own file is cut off")


def lose_a_peer(context: WorkerContext) -> None:
    raise RuntimeError("Connection closed by peer [10.0.0.7]:4040")


def leave(context: WorkerContext) -> None:
    print("leaving")
    os._exit(3)


def shoot_itself(context: WorkerContext) -> None:
    print("shooting")
    sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGKILL)


def sleep(context: WorkerContext) -> None:
    """Tells its own process id and that of a child, then sleeps."""
    _tell_pids(context)
    time.sleep(FOREVER_S)


def sleep_in_c(context: WorkerContext) -> None:
    """The same deep in a C call that holds the GIL: no Python thread or signal handler runs."""
    _tell_pids(context)
    ctypes.PyDLL(None).sleep(FOREVER_S)


def _tell_pids(context: WorkerContext) -> None:
    child = subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({FOREVER_S})"])
    context.emit({"kind": "pids", "pids": [os.getpid(), child.pid]})
