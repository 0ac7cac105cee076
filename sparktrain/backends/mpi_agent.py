"""What `mpirun` calls in place of ``ssh``: ``python -m sparktrain.backends.mpi_agent HOST COMMAND…``.

Asks the task on that host to run the command, which is that of Open MPI's daemon, and ends as it ends.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from multiprocessing.connection import Connection

from sparktrain.backends.mpi_job import AGENTS, SECRET, show
from sparktrain.gang.rendezvous import GREETING_S


def main() -> int:
    host, *command = sys.argv[1:]
    address, port = json.loads(os.environ[AGENTS])[host]
    link = socket.create_connection((address, port), GREETING_S)
    link.setblocking(True)
    with Connection(link.detach()) as connection:
        if not show(connection, os.environ[SECRET], {"kind": "daemon", "command": " ".join(command)}):
            sys.exit(f"{address}:{port} answers, but not as a task of this gang would")
        try:
            return int(connection.recv_bytes(64)) % 256
        except (EOFError, OSError):
            return 1


if __name__ == "__main__":
    sys.exit(main())
