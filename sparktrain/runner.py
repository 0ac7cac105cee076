"""Any function, or a script, as a gang: `run`, and `GangRunner` with the settings as Params."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from sparktrain import params, session
from sparktrain.errors import GangError, ParamError
from sparktrain.estimator import HasGang, Payload
from sparktrain.function import Call, Script
from sparktrain.gang import result
from sparktrain.gang.launch import launch
from sparktrain.params import GangParam
from sparktrain.shards.columns import KEY_COLUMN, ColumnPlan, ColumnPlanner
from sparktrain.store.params import HasStore
from sparktrain.store.store import Store, new_run_id

SCRIPT_SUFFIX = ".py"


class GangRunner(HasGang, HasStore):
    """Runs a function or a script once on every rank of a gang, one process for each barrier task.

    The processes find what their framework reads to meet: ``RANK``, ``WORLD_SIZE``, ``LOCAL_RANK``,
    ``LOCAL_WORLD_SIZE``, ``MASTER_ADDR`` and ``MASTER_PORT`` for `torch.distributed`'s ``env://``, ``TF_CONFIG`` for
    `tf.distribute` (rank 0 is the chief), a coordinator for `jax.distributed.initialize()`, ``CUDA_VISIBLE_DEVICES``
    with the GPUs that Spark has assigned to the task.

    Examples
    --------
    >>> GangRunner(num_proc=4).run(train, args=(0.1,))
    """

    verbose = GangParam(
        "verbose",
        "0: silent. 1: what the ranks print is shown on the driver, each line behind its rank.",
        params.verbosity,
        1,
    )
    dtypes = GangParam(
        "dtypes",
        "Of columns, by name: NumPy dtypes. By default a column's own; decimals are float64.",
        params.mapping(params.dtype_name),
        {},
    )
    shapes = GangParam(
        "shapes",
        "Of columns, by name: the shape of one row, for arrays and binary columns.",
        params.mapping(params.shape),
        {},
    )

    def run(
        self,
        fn: Callable[..., Any] | str | os.PathLike[str],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        df: DataFrame | None = None,
        spark: SparkSession | None = None,
    ) -> list[Any]:
        """Run it, and wait for all ranks.

        Parameters
        ----------
        fn : callable, str or path
            A function, also one of ``__main__`` (it travels by cloudpickle), or a script of Python.
        args : sequence
            What the function is called with; for a script its ``sys.argv[1:]``.
        kwargs : mapping, optional
            Keywords of the function; a script takes none.
        df : DataFrame, optional
            Its rows are dealt to the ranks; each finds its own in ``current_gang().shard``.
        spark : SparkSession, optional
            By default the DataFrame's, or the active one.

        Returns
        -------
        list
            What the function returned on each rank, in rank order; None each for a script.

        Raises
        ------
        RankFailed
            With the traceback of the rank that failed first, and its last lines.
        ParamError, ColumnError, NotEnoughSlots
            Before any Spark job.
        """
        work = _work(fn, args, kwargs or {})
        spark = spark or (session.session_of(df) if df is not None else session.active_session())
        if spark is None:
            raise ParamError("run: there is no active Spark session; make one first, or give spark=")
        self._check_backend(spark)
        num_proc = self._num_proc(spark)
        plan, run_url = self._plan(df), self._run_url()
        outcome = launch(
            _shards(spark, df, plan, num_proc, partitioned=self._value(self.partitioned)),
            self._spec_of(
                spark,
                num_proc,
                plan,
                "sparktrain.function:call",
                Payload({"reads": df is not None, "run_url": run_url}, "work", work, 0),
                every_result=True,
                shows_logs=bool(self._value(self.verbose)),
                log_url=None if run_url is None else f"{run_url}/logs",
            ),
            partitioned=df is None or self._value(self.partitioned),
            launch_timeout_s=self._value(self.launchTimeoutS),
            progress_label="run" if self._value(self.verbose) else None,
            result_bytes=result.IN_ROWS_BYTES + 1,  # nobody knows
        )
        found = []
        for rank, one in enumerate(outcome.results):
            with open(one.path, "rb") as file:
                found.append(_returned(file, rank))
            one.close()
        return found

    def _plan(self, df: DataFrame | None) -> ColumnPlan:
        if df is None:
            return ColumnPlanner(StructType()).plan([])
        if df.isStreaming:
            raise ParamError("df: expected a batch DataFrame, got a streaming one; run inside foreachBatch")
        planner = ColumnPlanner(df.schema)
        return planner.plan(planner.as_they_are(df.columns, self._value(self.dtypes), self._value(self.shapes)))

    def _run_url(self) -> str | None:
        store = self._value(self.store)
        return None if store is None else Store(store).get_run_path(self._value(self.runId) or new_run_id())


def run(
    fn: Callable[..., Any] | str | os.PathLike[str],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    df: DataFrame | None = None,
    spark: SparkSession | None = None,
    **settings: Any,
) -> list[Any]:
    """Run a function or a script once on every rank of a gang: ``GangRunner(**settings).run(fn, args, kwargs)``.

    Parameters
    ----------
    fn, args, kwargs, df, spark
        As for `GangRunner.run`.
    **settings
        Those of `GangRunner`: ``num_proc``, ``backend``, ``verbose``, ``store`` and more.

    Examples
    --------
    >>> sparktrain.run(train, args=(0.1,), num_proc=4)
    >>> sparktrain.run("train.py", args=["--epochs", "3"], num_proc=4)
    """
    return GangRunner(**settings).run(fn, args, kwargs, df=df, spark=spark)


def _work(fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
    """The pickled `Call` or `Script`."""
    if isinstance(args, (str, bytes)) or not isinstance(args, Sequence):
        raise ParamError(f"args: expected a list or tuple, got {args!r} ({type(args).__name__})")
    if isinstance(fn, (str, os.PathLike)):
        return pickle.dumps(_script(Path(fn), args, kwargs))
    if not callable(fn):
        raise ParamError(f"fn: expected a function or the path of a script, got {fn!r} ({type(fn).__name__})")
    try:
        return bytes(cloudpickle.dumps(Call(fn, tuple(args), dict(kwargs))))
    except Exception as error:
        raise ParamError(
            f"fn: {getattr(fn, '__name__', fn)!r} and its arguments can't be pickled: {type(error).__name__}: {error}. "
            "A Spark session, DataFrame, lock or open file stays on the driver: make what the function needs inside it"
        ) from error


def _script(path: Path, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Script:
    if kwargs:
        raise ParamError(f"kwargs: a script takes its arguments by args, got {dict(kwargs)!r}")
    if path.suffix != SCRIPT_SUFFIX or not path.is_file():
        raise ParamError(f"fn: expected a function or an existing {SCRIPT_SUFFIX} file, got the path {str(path)!r}")
    return Script(path.name, path.read_bytes(), tuple(str(one) for one in args))


def _shards(
    spark: SparkSession, df: DataFrame | None, plan: ColumnPlan, num_proc: int, *, partitioned: bool
) -> DataFrame:
    if df is None:  # a row for each rank, so that each has a task
        return spark.range(0, num_proc, 1, num_proc).withColumnRenamed("id", KEY_COLUMN)
    return plan.shards(df, None if partitioned else num_proc)


def _returned(file: Any, rank: int) -> Any:
    try:
        return pickle.load(file)
    except Exception as error:
        raise GangError(
            f"what rank {rank} returned can't be unpickled on the driver: {type(error).__name__}: {error}. Return "
            "plain values, arrays or a state_dict of CPU tensors, of packages that the driver has as well"
        ) from error
