"""A saved model whose architecture was swapped for a program: loading refuses it, and runs none of it."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import partial
from os import system
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from pyspark.ml import PipelineModel
from pyspark.sql import SparkSession
from torch import nn

from sparktrain.errors import PersistenceError
from sparktrain.torch import TorchModel

pytestmark = pytest.mark.integration


class Runs:
    """Pickles to a call of `function`, which unpickling makes."""

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self._call = (function, args)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self._call


def by_value(mark: Path) -> bytes:
    """As cloudpickle makes it of a class from a notebook, here one that writes when it is put together."""

    def write() -> None:
        Path(mark).write_text("ran")

    write.__module__ = "__main__"
    data: bytes = cloudpickle.dumps(Runs(write))
    return data


PROGRAMS: dict[str, Callable[[Path], bytes]] = {
    "os.system": lambda mark: pickle.dumps(Runs(system, f"touch '{mark}'")),
    "eval": lambda mark: pickle.dumps(Runs(eval, f"open({str(mark)!r}, 'w').close()")),
    "by value": by_value,
    "partial": lambda mark: pickle.dumps(Runs(partial(system, f"touch '{mark}'"))),
    "inside a model": lambda mark: pickle.dumps((nn.Sequential(nn.ReLU()), Runs(system, f"touch '{mark}'"))),
    "state of a module": lambda mark: pickle.dumps((Hooked(mark), None)),
}


class Hooked(nn.Identity):
    """Pickles as a torch.nn.Identity whose state holds a program."""

    def __init__(self, mark: Path) -> None:
        super().__init__()
        self.training = Runs(system, f"touch '{mark}'")  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        return nn.Identity, (), self.__dict__


@pytest.fixture(scope="module")
def saved(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved")
    model = TorchModel(model=nn.Linear(1, 1), feature_cols=["x"])
    model._fitted([{"loss": 1.0}], ((1,),), (("float32", (1,)),), ("y",))
    PipelineModel([model]).write().overwrite().save(str(path))
    return path


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_in_place_of_the_architecture(saved: Path, tmp_path: Path, program: str) -> None:
    mark = tmp_path / "mark"
    data = PROGRAMS[program](mark)
    (structure,) = saved.glob("stages/*/structure.pkl")
    structure.with_name(".structure.pkl.crc").unlink(missing_ok=True)  # who swaps the file does this too
    structure.write_bytes(data)
    with pytest.raises(PersistenceError, match="the saved architecture"):
        TorchModel.load(str(structure.parent))
    with pytest.raises(PersistenceError, match="the saved architecture"):
        PipelineModel.load(str(saved))
    assert not mark.exists()


@pytest.mark.parametrize("program", PROGRAMS)
def test_those_programs_would_run(tmp_path: Path, program: str) -> None:
    pickle.loads(PROGRAMS[program](tmp_path / "mark"))
    assert (tmp_path / "mark").exists()
