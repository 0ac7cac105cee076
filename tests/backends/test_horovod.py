"""What Horovod finds in a rank's environment, and `hvd.init()` itself in real processes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from sparktrain import backends
from sparktrain.backends import horovod as backend
from sparktrain.backends.horovod import Place, place
from sparktrain.errors import GangError
from sparktrain.gang.spec import Gang
from tests.backends import horovod
from tests.torch.rank import run_ranks

SECRET = "ab" * 32


@pytest.mark.parametrize(
    ("hosts", "places"),
    [
        ("a", [(0, 1, 0, 1)]),
        ("aa", [(0, 2, 0, 1), (1, 2, 0, 1)]),
        ("ab", [(0, 1, 0, 2), (0, 1, 1, 2)]),
        ("abab", [(0, 2, 0, 2), (0, 2, 1, 2), (1, 2, 0, 2), (1, 2, 1, 2)]),
        # uneven: a third rank on b alone, which has no second
        ("baab", [(0, 2, 0, 2), (0, 2, 1, 2), (1, 2, 1, 2), (1, 2, 0, 2)]),
        ("abbcb", [(0, 1, 0, 3), (0, 3, 1, 3), (1, 3, 0, 1), (0, 1, 2, 3), (2, 3, 0, 1)]),
    ],
)
def test_places(hosts: str, places: list[tuple[int, int, int, int]]) -> None:
    assert [place(tuple(hosts), rank) for rank in range(len(hosts))] == [Place(*one) for one in places]


def test_environment_of_a_rank() -> None:
    gang = Gang(2, ("127.0.0.1", "127.0.0.2", "127.0.0.2"), ("127.0.0.1", 7), collective_timeout_s=20.5, secret=SECRET)
    found = backend.environment(gang, 4321)
    assert {name.removeprefix("HOROVOD_"): value for name, value in found.items()} == {
        "CONTROLLER": "gloo",
        "CPU_OPERATIONS": "gloo",
        "RANK": "2",
        "SIZE": "3",
        "LOCAL_RANK": "1",
        "LOCAL_SIZE": "2",
        "CROSS_RANK": "0",
        "CROSS_SIZE": "1",
        "HOSTNAME": "127.0.0.2",
        "GLOO_TIMEOUT_SECONDS": "20",
        "STALL_CHECK_TIME_SECONDS": "20",
        "STALL_SHUTDOWN_TIME_SECONDS": "20",
        "GLOO_RENDEZVOUS_ADDR": found["HOROVOD_GLOO_RENDEZVOUS_ADDR"],
        "GLOO_RENDEZVOUS_PORT": "4321",
    }
    address, _, token = found["HOROVOD_GLOO_RENDEZVOUS_ADDR"].partition("/")
    assert address == "127.0.0.1:4321"
    assert len(token) == 64
    assert token != SECRET


def test_a_gang_of_one_needs_no_rendezvous() -> None:
    found = backend.environment(Gang(0, ("127.0.0.1",), ("127.0.0.1", 7), secret=SECRET), None)
    assert not any("RENDEZVOUS" in name for name in found)


def test_a_host_without_an_ipv4_address_is_told() -> None:
    gang = Gang(0, ("::1", "::1"), ("::1", 7), secret=SECRET)
    with pytest.raises(GangError, match=r"needs an IPv4 address of rank 0's host, '::1'"):
        backend.environment(gang, 4321)


@pytest.mark.parametrize(
    ("files", "told"),
    [((), "isn't installed here"), (("__init__.py", "torch/__init__.py"), "was built without PyTorch")],
)
def test_a_python_without_horovod_is_told_how_to_build_it(
    files: tuple[str, ...], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for one in files:
        (tmp_path / "horovod" / one).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "horovod" / one).touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "horovod", raising=False)
    missing = backends.load("horovod").missing()
    assert missing is not None
    assert told in missing
    assert "make horovod" in missing
    with pytest.raises(GangError, match=r"This is rank 1 on b"):
        backends.load("horovod").prepare(Gang(1, ("a", "b"), ("a", 7)))


def everything(collective: Any) -> dict[str, Any]:
    """Horovod as a user's own code finds it on a rank."""
    import horovod.torch as hvd
    import torch

    found = {
        "place": (hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size()),
        "sum": hvd.allreduce(torch.arange(4.0) * (hvd.rank() + 1), op=hvd.Sum).tolist(),
        "object": hvd.broadcast_object({"rank": hvd.rank()}, root_rank=1),
    }
    even = hvd.add_process_set([0, 2])
    found["even"] = hvd.allreduce(torch.ones(1), op=hvd.Sum, process_set=even).item() if even.included() else None
    found["gathered"] = collective.gather_bytes(b"x" * collective.rank)
    found["nothing"] = collective.gather_bytes(b"")
    return found


@horovod
def test_ranks_find_one_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOROVOD_DYNAMIC_PROCESS_SETS", "1")
    ranks = run_ranks("tests.backends.test_horovod:everything", 3, tmp_path, backend="horovod")
    assert [one["place"] for one in ranks] == [(rank, 3, rank, 3, 0, 1) for rank in range(3)]
    for one in ranks:
        assert one["sum"] == [0, 6, 12, 18]
        assert one["object"] == {"rank": 1}
        assert one["gathered"] == [b"", b"x", b"xx"]
        assert one["nothing"] == [b"", b"", b""]
    assert [one["even"] for one in ranks] == [2.0, None, 2.0]
