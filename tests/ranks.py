"""Ranks of a gang without Spark: one process each, and beside them what their backend runs in their tasks.

A module whose ``main`` takes a `Place` runs one: ``python -m MODULE PLACE``. FUNCTION, as ``module:name``, is what it
calls there; what that returns is pickled for the test.
"""

from __future__ import annotations

import importlib
import json
import os
import pickle
import secrets
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sparktrain import backends
from sparktrain.gang.spec import Gang

ROOT = Path(__file__).resolve().parents[1]
HOST = "127.0.0.1"
MEET_S = 60.0


@dataclass(frozen=True)
class Place:
    """What one of these processes is told."""

    function: str
    rank: int
    world: int
    port: int
    listen_fd: int | None
    secret: str
    backend: str
    out: str

    @property
    def gang(self) -> Gang:
        return Gang(self.rank, (HOST,) * self.world, (HOST, self.port), collective_timeout_s=60, secret=self.secret)

    def run(self, *given: Any) -> None:
        """Call the function; who fails ends at once, without waiting for the others."""
        module, _, name = self.function.partition(":")
        try:
            result = getattr(importlib.import_module(module), name)(*given)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        Path(self.out, f"{self.rank}.pickle").write_bytes(pickle.dumps(result))


def run_ranks(
    module: str,
    function: str,
    world: int,
    out: Path,
    timeout_s: float = 240,
    backend: str = "native",
    environment: Mapping[str, str] | None = None,
) -> list[Any]:
    """Run `function` on `world` ranks; returns what each returned, in rank order."""
    environment = {**os.environ, **(environment or {})}
    out.mkdir(exist_ok=True)
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server((HOST, 0)))
        os.set_inheritable(listener.fileno(), True)
        port, secret = listener.getsockname()[1], secrets.token_hex(32)
        places = [
            Place(function, rank, world, port, None if rank else listener.fileno(), secret, backend, str(out))
            for rank in range(world)
        ]
        companions = []
        for _ in places:
            companions.append(backends.load(backend).companion(HOST, sys.stderr.write, environment))
            stack.callback(companions[-1].close)
        told = [companion.tells() for companion in companions]
        for place, companion in zip(places, companions, strict=True):
            companion.start(place.gang, told)
        ranks = []
        for place, companion in zip(places, companions, strict=True):
            ranks.append(
                subprocess.Popen(
                    [sys.executable, "-m", module, json.dumps(asdict(place))],
                    cwd=ROOT,
                    env={**environment, **companion.environment(MEET_S)},
                    pass_fds=[listener.fileno()],
                )
            )
            stack.callback(_end, ranks[-1])
        deadline = time.monotonic() + timeout_s
        while any(rank.poll() is None for rank in ranks) and time.monotonic() < deadline:
            if any(rank.poll() for rank in ranks):
                break  # the others would wait for it
            time.sleep(0.05)
        assert [rank.poll() for rank in ranks] == [0] * world
        with ThreadPoolExecutor(world) as pool:
            list(pool.map(lambda companion: companion.finish(), companions))
    return [pickle.loads((out / f"{rank}.pickle").read_bytes()) for rank in range(world)]


def _end(rank: subprocess.Popen) -> None:
    rank.kill()
    rank.wait(30)


def be_one(main: Callable[[Place], None]) -> None:
    """Be the rank that the command line tells of; it ends as the worker does, without running destructors."""
    place = Place(**json.loads(sys.argv[1]))
    backend = backends.load(place.backend)
    backend.prepare(place.gang)
    main(place)
    backend.leave()
    sys.stdout.flush()
    os._exit(0)
