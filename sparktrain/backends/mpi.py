"""The MPI backend: the workers are ranks of a job of Open MPI's `mpirun`, without SSH.

`mpirun` runs in rank 0's task and asks for a daemon (`orted`) on each host. What it calls in place of `ssh` goes to a
task there, over a connection that shows the run's secret, and that task starts the daemon. For each rank the daemon
starts a `sparktrain.backends.mpi_seat`: a small process that hands its environment, which is what MPI knows a rank by,
to the rank's task and so to the worker, and that stays as long as the worker does.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from sparktrain.backends import native
from sparktrain.backends.companion import Companion
from sparktrain.errors import GangError
from sparktrain.gang.spec import Gang

if TYPE_CHECKING:
    from sparktrain.gang.sockets import Sockets  # with it comes pyarrow, which the worker leaves to its trainer

INSTALL = "install Open MPI (on Debian and Ubuntu `apt-get install openmpi-bin`) on every executor"


def root_environment() -> dict[str, str]:
    """Open MPI asks twice whether root means it; containers run everything as root."""
    names = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")
    return dict.fromkeys(names, "1") if os.geteuid() == 0 else {}


class MpiBackend:
    def missing(self) -> str | None:
        """What this host lacks, and how to get it."""
        absent = [one for one in ("mpirun", "orted") if shutil.which(one) is None]
        return f"backend='mpi': there is no {' and no '.join(absent)} here; {INSTALL}" if absent else None

    def companion(self, address: str, log: Callable[[str], None], environment: Mapping[str, str]) -> Companion:
        """Raises GangError where this host has no Open MPI."""
        from sparktrain.backends.mpi_job import MpiJob  # late: only tasks need it

        missing = self.missing()
        if missing is not None:
            raise GangError(f"{missing}. This is {address}")
        return MpiJob(address, log, environment)

    def prepare(self, gang: Gang) -> None:
        """As on the native backend: MPI's own environment is there already."""
        native.BACKEND.prepare(gang)

    def environment(self, gang: Gang, peers: Sockets) -> dict[str, str]:
        """What frameworks read, and that Horovod is to use MPI."""
        return {**native.BACKEND.environment(gang, peers), **self.horovod(gang, peers)}

    def horovod(self, gang: Gang, peers: Sockets) -> dict[str, str]:
        """What `horovod.torch.init()` reads."""
        return {"HOROVOD_CONTROLLER": "mpi", "HOROVOD_CPU_OPERATIONS": "mpi"}

    def leave(self) -> None:
        """End this rank's part of MPI, where it has taken one: `mpirun` takes a rank that only goes for a failure."""
        if "horovod.torch.mpi_ops" in sys.modules:
            sys.modules["horovod.torch.mpi_ops"].shutdown()
        if "mpi4py.MPI" in sys.modules:
            mpi = sys.modules["mpi4py.MPI"]
            if mpi.Is_initialized() and not mpi.Is_finalized():
                mpi.Finalize()


BACKEND = MpiBackend()
