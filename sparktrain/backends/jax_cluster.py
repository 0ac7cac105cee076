"""How `jax.distributed.initialize()` without arguments finds the gang: JAX looks for clusters that it was told of.

JAX is told when it is imported, which a function may do or not do: a finder waits for that.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from sparktrain.gang.spec import Gang

CLUSTERS = "jax._src.clusters.cluster"
COORDINATOR, PROCESSES, PROCESS = "SPARKTRAIN_JAX_COORDINATOR", "SPARKTRAIN_JAX_PROCESSES", "SPARKTRAIN_JAX_PROCESS"


def environment(gang: Gang, coordinator: str) -> dict[str, str]:
    """What the cluster below reads; from now on JAX learns of it.

    Parameters
    ----------
    gang : Gang
    coordinator : str
        ``host:port`` where rank 0 will listen.
    """
    sys.meta_path.insert(0, _Finder())
    found = {COORDINATOR: coordinator, PROCESSES: str(gang.world_size), PROCESS: str(gang.rank)}
    return found if gang.rank else {**found, "JAX_COORDINATOR_BIND_ADDRESS": coordinator}


class _Finder:
    """Finds the module as it would be found, and has `register` run after it."""

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != CLUSTERS:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader.exec_module = _then_register(spec.loader.exec_module)  # type: ignore[method-assign]
        return spec


def _then_register(execute: Any) -> Any:
    def exec_module(module: ModuleType) -> None:
        execute(module)
        register(module)

    return exec_module


def register(clusters: Any) -> None:
    """Tell JAX of the gang, before all other clusters."""

    class SparktrainCluster(clusters.ClusterEnv):  # type: ignore[misc]
        name = "sparktrain"

        @classmethod
        def is_env_present(cls) -> bool:
            return COORDINATOR in os.environ

        @classmethod
        def get_coordinator_address(cls, timeout_secs: int | None = None, **options: Any) -> str:
            return os.environ[COORDINATOR]

        @classmethod
        def get_process_count(cls) -> int:
            return int(os.environ[PROCESSES])

        @classmethod
        def get_process_id(cls) -> int:
            return int(os.environ[PROCESS])
