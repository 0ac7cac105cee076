"""What MPI's daemon starts for a rank: ``python -m sparktrain.backends.mpi_seat ADDRESS PORT``.

Hands its environment to the rank's task, and stays until that says that the rank is done, or has ended.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
from multiprocessing.connection import Connection

from sparktrain.backends.mpi_job import PREFIXES, SECRET, show
from sparktrain.gang.rendezvous import GREETING_S


def main() -> int:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: no daemon, no rank
    environment = {key: value for key, value in os.environ.items() if key.startswith(PREFIXES)}
    link = socket.create_connection((sys.argv[1], int(sys.argv[2])), GREETING_S)
    link.setblocking(True)
    with Connection(link.detach()) as connection:
        if not show(connection, os.environ[SECRET], {"kind": "seat", "environment": environment}):
            sys.exit("this rank's task answers, but not as it would")
        try:
            return 0 if connection.recv_bytes(64) == b"done" else 1
        except (EOFError, OSError):
            return 1


if __name__ == "__main__":
    sys.exit(main())
