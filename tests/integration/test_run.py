"""`sparktrain.run`: functions and scripts on every rank, what they return and print, their rows, and how they fail."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.ml.linalg import Vectors
from pyspark.sql import DataFrame, Row, SparkSession

from sparktrain import GangRunner, current_gang, run
from sparktrain.errors import ColumnError, DataError, GangError, NotEnoughSlots, ParamError, RankFailed
from tests.integration import functions
from tests.integration.leftovers import wait_until, workers

pytestmark = pytest.mark.integration
ROOT = Path(__file__).resolve().parents[2]
MNIST = ROOT / "data" / "mnist10k.parquet"


def test_what_each_rank_returns_comes_back_in_rank_order(spark: SparkSession) -> None:
    def work(base: int, *, factor: int = 1) -> tuple[int, int, int, int, bool]:
        gang = current_gang()
        return base + factor * gang.rank, gang.world_size, gang.local_rank, gang.local_world_size, gang.shard is None

    assert run(work, (10,), {"factor": 5}, num_proc=3) == [(10 + 5 * rank, 3, rank, 3, True) for rank in range(3)]
    assert GangRunner(num_proc=1).setVerbose(0).run(work, [1]) == [(1, 1, 0, 1, True)]


def test_results_larger_than_spark_s_rows_take(spark: SparkSession) -> None:
    def work(size: int) -> Any:
        return np.full(size, current_gang().rank, np.uint8)

    for rank, found in enumerate(run(work, (100 << 20,), num_proc=2, verbose=0)):
        assert found.nbytes == 100 << 20
        assert (found == rank).all()


def test_a_function_may_end_as_a_script_does(spark: SparkSession) -> None:
    assert run(lambda: sys.exit(), num_proc=2, verbose=0) == [None, None]
    with pytest.raises(RankFailed, match="SystemExit: 3"):
        run(lambda: sys.exit(3), num_proc=2, verbose=0)


def test_a_large_argument_arrives(spark: SparkSession) -> None:
    large = np.arange(1 << 20)
    assert run(lambda values: int(values.sum()), (large,), num_proc=2, verbose=0) == [int(large.sum())] * 2


def test_a_script_runs_as_the_main_program(spark: SparkSession, tmp_path: Path, capfd: Any) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import os, sys\n"
        "def main():\n"
        "    print(__name__, sys.argv[1:], os.path.basename(sys.argv[0]), os.environ['RANK'], flush=True)\n"
        "    open(os.path.join(sys.argv[2], os.environ['RANK']), 'w').close()\n"
        "if __name__ == '__main__':\n"
        "    main()\n"
        "    sys.exit(int(sys.argv[1]))\n"
    )
    assert run(script, [0, tmp_path], num_proc=2) == [None, None]
    assert {one.name for one in tmp_path.iterdir()} == {"train.py", "0", "1"}
    printed = capfd.readouterr().out
    for rank in (0, 1):
        assert f"[rank {rank}] __main__ ['0', '{tmp_path}'] train.py {rank}\n" in printed
    with pytest.raises(RankFailed, match=r"train\.py has ended with exit status 3"):
        run(str(script), ["3", str(tmp_path)], num_proc=2)


def test_what_ranks_print_is_shown_behind_their_rank_and_kept(spark: SparkSession, tmp_path: Path, capfd: Any) -> None:
    def work(lines: int) -> None:
        import sys

        for line in range(lines):
            print("line", line, "of", current_gang().rank)
        print("x" * 100_000)
        print("to stderr", file=sys.stderr)

    run(work, (2000,), num_proc=2, store=str(tmp_path), run_id="first")
    shown = capfd.readouterr().out
    for rank in (0, 1):
        expected = [f"line {line} of {rank}" for line in range(2000)]
        assert re.findall(rf"^\[rank {rank}\] (line .*)$", shown, re.M) == expected
        assert f"[rank {rank}] to stderr\n" in shown
        kept = (tmp_path / "first" / "logs" / f"rank-{rank}.log").read_text().splitlines()
        assert kept == [*expected, "x" * 100_000, "to stderr"]
    run(work, (3,), num_proc=2, verbose=0)
    assert "[rank" not in capfd.readouterr().out


@pytest.fixture(scope="module")
def table(spark: SparkSession) -> DataFrame:
    rows = [
        Row(
            n=index,
            x=index / 4,
            flag=index % 2 == 0,
            small=index % 100,
            items=[float(index), 1.0],
            vector=Vectors.dense([index, 2.0]) if index % 2 else Vectors.sparse(2, [0], [float(index)]),
            raw=bytes([index % 256, 7]),
        )
        for index in range(101)
    ]
    schema = "n long, x double, flag boolean, small short, items array<float>, raw binary"
    plain = spark.createDataFrame([row[:5] + row[6:] for row in rows], schema).repartition(4, "n")
    vectors = spark.createDataFrame([Row(n=row.n, vector=row.vector) for row in rows])
    return plain.join(vectors, "n")


def test_each_rank_gets_its_rows_with_their_types(table: DataFrame) -> None:
    def work() -> Any:
        shard = current_gang().shard
        assert shard is not None
        assert len(shard) == shard.counts[current_gang().rank]
        arrays = shard.arrays()
        batches = list(shard.numpy(16))
        for name, array in arrays.items():
            np.testing.assert_array_equal(np.concatenate([one[name] for one in batches]), array)
        return arrays, [len(one["n"]) for one in batches]

    found = run(work, df=table, num_proc=2, dtypes={"raw": "uint8"}, shapes={"raw": [2]}, verbose=0)
    whole = {name: np.concatenate([arrays[name] for arrays, _ in found]) for name in table.columns}
    order = np.argsort(whole["n"])
    numbers = np.arange(101)
    assert {name: str(array.dtype) for name, array in whole.items()} == {
        "n": "int64",
        "x": "float64",
        "flag": "bool",
        "small": "int16",
        "items": "float32",
        "raw": "uint8",
        "vector": "float64",
    }
    np.testing.assert_array_equal(whole["n"][order], numbers)
    np.testing.assert_array_equal(whole["x"][order], numbers / 4)
    np.testing.assert_array_equal(whole["flag"][order], numbers % 2 == 0)
    np.testing.assert_array_equal(whole["items"][order][:, 0], numbers)
    np.testing.assert_array_equal(whole["raw"][order], np.stack([numbers, np.full(101, 7)], 1))
    np.testing.assert_array_equal(whole["vector"][order], np.stack([numbers, np.where(numbers % 2, 2.0, 0.0)], 1))
    assert sorted(len(arrays["n"]) for arrays, _ in found) == [50, 51]
    assert all(sizes[:-1] == [16] * 3 for _, sizes in found)


@pytest.mark.slow
def test_batches_of_each_framework_and_shuffled(table: DataFrame) -> None:
    def work() -> Any:
        shard = current_gang().shard
        assert shard is not None
        plain = [int(one) for one in shard.arrays()["n"]]
        from_torch = [int(one) for batch in shard.torch(8) for one in batch["n"]]
        from_arrow = [one for batch in shard.arrow(8) for one in batch.to_pydict()["n"]]
        data = shard.tf_data(8)
        from_tf = [[int(one) for batch in data for one in batch["n"].numpy()] for _ in range(2)]
        shuffled = [
            [int(one) for batch in shard.numpy(8, shuffle=True, epoch=epoch) for one in batch["n"]]
            for epoch in (0, 0, 1)
        ]
        full = [len(batch["n"]) for batch in shard.numpy(8, drop_last=True)]
        return plain, from_torch, from_arrow, from_tf, shuffled, full

    for plain, from_torch, from_arrow, from_tf, shuffled, full in run(
        work, df=table.select("n", "items"), num_proc=2, verbose=0
    ):
        assert from_torch == from_arrow == from_tf[0] == from_tf[1] == plain
        assert shuffled[0] == shuffled[1] != shuffled[2]
        assert shuffled[0] != plain
        assert sorted(shuffled[0]) == sorted(shuffled[2]) == sorted(plain)
        assert full == [8] * (len(plain) // 8)


def test_partitions_as_they_are_and_a_rank_without_rows(spark: SparkSession) -> None:
    def work() -> Any:
        shard = current_gang().shard
        assert shard is not None
        return shard.arrays()["id"].tolist(), shard.counts, [len(one["id"]) for one in shard.numpy(4)]

    df = spark.range(0, 6, 1, 2).where("id < 3")
    assert run(work, df=df, num_proc=2, partitioned=True, verbose=0) == [([0, 1, 2], (3, 0), [3]), ([], (3, 0), [])]


def test_the_usual_ddp_function_runs_unchanged(spark: SparkSession) -> None:
    found = run(functions.ddp_mnist, (str(MNIST), 3, 32), num_proc=2, verbose=0)
    assert min(accuracy for accuracy, _ in found) >= 0.9
    assert found[0][1] == found[1][1]


@pytest.mark.slow
def test_a_multi_worker_mirrored_loop_runs_unchanged(spark: SparkSession) -> None:
    found = run(functions.multi_worker_mirrored, (60,), num_proc=2, verbose=0)
    assert [replicas for replicas, _ in found] == [2, 2]
    np.testing.assert_allclose(found[0][1], [1.0, -2.0, 3.0], atol=1e-2)
    assert found[0][1] == found[1][1]


@pytest.mark.slow
def test_jax_finds_its_processes(spark: SparkSession) -> None:
    assert run(functions.jax_sum, num_proc=2, verbose=0) == [(2, 0, 3.0), (2, 1, 3.0)]


def test_a_rank_may_take_longer_than_a_collective(spark: SparkSession) -> None:
    def work() -> int:
        time.sleep(4.0 * current_gang().rank)
        return os.getpid()

    assert len(set(run(work, num_proc=2, collective_timeout_s=2.0, verbose=0))) == 2


def test_the_rank_that_fails_speaks_first(spark: SparkSession) -> None:
    def work() -> None:
        if current_gang().rank == 1:
            print("about to fail")
            raise KeyError("no such thing")
        time.sleep(60)

    started = time.monotonic()
    with pytest.raises(RankFailed, match=r"rank 1 of 2 failed.*KeyError: 'no such thing'") as told:
        run(work, num_proc=2, verbose=0)
    assert time.monotonic() - started < 30
    assert "about to fail" in str(told.value)
    assert wait_until(lambda: not workers(), 5)


def test_a_killed_rank_is_named(spark: SparkSession) -> None:
    def work() -> None:
        if current_gang().rank == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)

    started = time.monotonic()
    with pytest.raises(RankFailed, match=r"rank 0 of 2 failed.*SIGKILL"):
        run(work, num_proc=2, verbose=0)
    assert time.monotonic() - started < 20
    assert wait_until(lambda: not workers(), 5)


def test_what_can_t_be_run_is_refused_before_any_job(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(ParamError, match="fn: expected a function or the path of a script, got 5"):
        run(5, num_proc=2)  # type: ignore[arg-type]
    with pytest.raises(ParamError, match=r"can't be pickled.*stays on the driver"):
        run(lambda: spark.range(3), num_proc=2)
    with pytest.raises(ParamError, match="args: expected a list or tuple, got 'abc'"):
        run(print, "abc", num_proc=2)
    with pytest.raises(ParamError, match=r"an existing \.py file, got the path 'missing\.py'"):
        run("missing.py", num_proc=2)
    (tmp_path / "one.py").touch()
    with pytest.raises(ParamError, match="a script takes its arguments by args"):
        run(tmp_path / "one.py", kwargs={"a": 1}, num_proc=2)
    with pytest.raises(ParamError, match="no parameter 'num_procs'; did you mean 'num_proc'"):
        run(print, num_procs=2)
    with pytest.raises(NotEnoughSlots, match="num_proc=9"):
        run(print, num_proc=9)
    with pytest.raises(ColumnError, match=r"df: column 'name' is string.*StringIndexer"):
        run(print, df=spark.createDataFrame([("a",)], "name string"), num_proc=2)
    with pytest.raises(ColumnError, match="binary column 'raw' needs its dtype and shape declared"):
        run(print, df=spark.createDataFrame([(b"a",)], "raw binary"), num_proc=2)
    with pytest.raises(ColumnError, match=r"dtypes names 'y', which is not one of the columns \['id'\]"):
        run(print, df=spark.range(3), dtypes={"y": "int8"}, num_proc=2)
    with pytest.raises(DataError, match=r"rows with values that are no int8 \(not whole, or out of its range\)"):
        run(print, df=spark.range(300), dtypes={"id": "int8"}, num_proc=2)
    with pytest.raises(RuntimeError, match="only to functions and scripts"):
        current_gang()


def test_a_result_that_can_t_travel_is_explained(spark: SparkSession) -> None:
    def work() -> Any:
        import threading

        return threading.Lock()

    with pytest.raises(RankFailed, match="can't be pickled: return plain values"):
        run(work, num_proc=2, verbose=0)

    class OnlyThere:
        def __reduce__(self) -> Any:
            return _fail_on_driver, (os.getpid(),)

    with pytest.raises(GangError, match="what rank 0 returned can't be unpickled on the driver: ValueError"):
        run(OnlyThere, num_proc=2, verbose=0)


def _fail_on_driver(pid: int) -> None:
    raise ValueError(f"only in process {pid}")
