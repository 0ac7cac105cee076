"""`GangEstimator.fit`: validate -> plan -> launch -> Model; each framework fills in the middle."""

from __future__ import annotations

import logging
import os
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from pyspark.ml.base import Estimator, Model
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from sparktrain import backends, params, session, shipping
from sparktrain.errors import ParamError
from sparktrain.gang.launch import GangOutcome, launch
from sparktrain.gang.restart import run_with_restarts
from sparktrain.gang.result import DRIVER_MEMORY, MAX_RESULT_SIZE, check_rows_can_hold
from sparktrain.gang.spec import GangSpec
from sparktrain.params import GangParam, KeywordParams
from sparktrain.runs import Run
from sparktrain.shards.columns import ColumnPlan

logger = logging.getLogger(__name__)
M = TypeVar("M", bound="Model")


class HasGang(KeywordParams):
    """How many ranks, on what, and how long anything may take."""

    numProc = GangParam(
        "num_proc",
        "Ranks of the gang, one barrier task each. By default as many as the cluster has task slots.",
        params.integer(1),
        None,
        aliases=("num_workers",),
    )
    backend = GangParam(
        "backend",
        "How the ranks communicate: 'native' (what each framework brings); 'horovod', or 'mpi' (Horovod over MPI), for "
        "PyTorch, and Keras on TensorFlow or PyTorch.",
        params.one_of(*backends.AVAILABLE),
        "native",
    )
    partitioned = GangParam(
        "partitioned",
        "True: the DataFrame's partitions are the shards as they are; there must be num_proc of them. "
        "Else the DataFrame is repartitioned.",
        params.boolean,
        False,
    )
    launchTimeoutS = GangParam(
        "launch_timeout_s",
        "Seconds to wait for executors that are still registering, and for a launched gang's ranks to start while "
        "Spark runs no task at all (with partitioned=True on local[N] at most 30: more slots never come).",
        params.number(above=0),
        300.0,
    )
    rendezvousTimeoutS = GangParam(
        "rendezvous_timeout_s",
        "Seconds that a rank whose shard is spooled waits for its worker's imports and for the other ranks.",
        params.number(above=0),
        600.0,
    )
    collectiveTimeoutS = GangParam(
        "collective_timeout_s",
        "Seconds after which one collective operation fails because a rank does not take part.",
        params.number(above=0),
        1800.0,
    )
    verbose = GangParam("verbose", "0: silent. 1: a progress bar on the driver's terminal.", params.verbosity, 1)

    def _spec_of(
        self, spark: SparkSession, num_proc: int, plan: ColumnPlan, trainer: str, payload: Payload, **more: Any
    ) -> GangSpec:
        """The spec of these Params; the payload's large part is on its way to the executors then."""
        small = dict(payload.small)
        shipped = None
        if len(payload.large) > shipping.INLINE_BYTES:
            shipped = os.path.basename(shipping.ship_bytes(spark, payload.large))
        else:
            small[payload.large_key] = payload.large
        return GangSpec(
            num_proc=num_proc,
            trainer=trainer,
            payload=small,
            payload_file=shipped,
            tensors=plan.tensors,
            split=plan.split,
            backend=self._value(self.backend),
            rendezvous_timeout_s=self._value(self.rendezvousTimeoutS),
            collective_timeout_s=self._value(self.collectiveTimeoutS),
            **more,
        )

    def _check_backend(self, spark: SparkSession) -> None:
        """What the backend needs must be there, as far as the driver can tell."""
        missing = backends.load(self._value(self.backend)).missing()
        if missing is not None and session.executors_run_this_python(spark):
            raise ParamError(missing)

    def _num_proc(self, spark: SparkSession) -> int:
        given = self._value(self.numProc)
        if given is not None:
            return int(given)
        found = session.registered_slots(spark) or session.promised_slots(spark)
        if not found:
            raise ParamError("num_proc: this session doesn't tell how many task slots the cluster has; set it")
        return found


class HasTraining(KeywordParams):
    """Epochs, batches and which rows train in which order."""

    batchSize = GangParam(
        "batch_size",
        "Rows in each rank's batch; the global batch of a step is num_proc * batch_size.",
        params.integer(1),
        32,
    )
    epochs = GangParam("epochs", "Passes over the training rows.", params.integer(1), 1)
    seed = GangParam(
        "seed",
        "Seeds the order of rows, the validation draw and the workers' generators: the same seed, DataFrame "
        "(partitions and order of rows included) and num_proc give the same model.",
        params.integer(0),
        0,
    )
    shuffle = GangParam(
        "shuffle",
        "'local': permute each shard anew every epoch. 'global': deal the rows to the ranks by a hash of seed and "
        "row, once a fit, as well. False: the DataFrame's own order. True means 'local'.",
        params.shuffle,
        "local",
    )
    gradientCompression = GangParam(
        "gradient_compression",
        "'fp16': gradients travel in half precision, half the bytes; weights and optimizers keep theirs. Horovod's "
        "Compression.fp16 means the same. None: as they are.",
        params.gradient_compression,
        None,
        aliases=("compression",),
    )


@dataclass(frozen=True)
class Payload:
    """What a trainer gets: small values in the closure, and one large part that travels as a file.

    Parameters
    ----------
    small : mapping
    large_key : str
        Where the large part goes in the mapping when it is small enough after all.
    large : bytes
    result_bytes : int
        About how large the trained model will be.
    result_bytes_at_most : int
        Where that can't be told: how large it may be.
    """

    small: Mapping[str, Any]
    large_key: str
    large: bytes
    result_bytes: int
    result_bytes_at_most: int = 0


class HasRestarts(KeywordParams):
    """What a fit does about a gang that is lost."""

    maxRestarts = GangParam(
        "max_restarts",
        "How often a gang that has lost a process, an executor or a connection is launched again. A fault of the "
        "training itself is not tried again. TorchEstimator with a store goes on from its newest checkpoint, "
        "KerasEstimator with BackupAndRestore from that; others begin anew. None: 2 for a TorchEstimator with a store, "
        "else 0.",
        params.integer(0),
        None,
    )


class GangEstimator(Estimator[M], HasGang, HasRestarts, Generic[M]):
    """Base of the estimators: a subclass names its trainer, plans columns, packs a payload, makes the model."""

    trainer: str
    """``module:function`` that the workers run."""

    @abstractmethod
    def _plan(self, schema: StructType) -> ColumnPlan:
        """Columns to tensors; raises on what the schema already shows to be wrong."""

    @abstractmethod
    def _payload(self, plan: ColumnPlan, schema: StructType) -> Payload:
        """What the trainer needs; raises on Params that contradict one another."""

    @abstractmethod
    def _create_model(self, outcome: GangOutcome, plan: ColumnPlan) -> M:
        """The fitted model, with this estimator's values of the Params they share."""

    def _shards(self, dataset: DataFrame, plan: ColumnPlan, num_proc: int) -> DataFrame:
        """The needed columns, in one partition a rank."""
        return plan.shards(dataset, None if self._value(self.partitioned) else num_proc)

    def _fit(self, dataset: DataFrame) -> M:
        spark = session.session_of(dataset)
        if dataset.isStreaming:
            raise ParamError(
                "fit takes a batch DataFrame, got a streaming one; fit inside foreachBatch, or read it as a table"
            )
        schema = dataset.schema
        plan = self._plan(schema)
        payload = self._payload(plan, schema)
        self._check_backend(spark)
        num_proc = self._num_proc(spark)
        result_bytes = payload.result_bytes
        at_most = max(result_bytes, payload.result_bytes_at_most)
        if session.is_connect(spark):
            check_rows_can_hold(
                result_bytes, session.setting(spark, MAX_RESULT_SIZE), session.setting(spark, DRIVER_MEMORY)
            )
        run = self._begin_run(plan, payload)
        spec = self._gang_spec(spark, num_proc, plan, payload)
        del payload  # its large part is on its way to the executors
        shards = self._shards(dataset, plan, num_proc)

        def launched(attempt: int) -> GangOutcome:
            return launch(
                shards,
                replace(spec, payload={**spec.payload, **run.told(attempt)}),
                partitioned=self._value(self.partitioned),
                launch_timeout_s=self._value(self.launchTimeoutS),
                progress_label=type(self).__name__ if self._value(self.verbose) else None,
                result_bytes=at_most,
            )

        outcome = run_with_restarts(launched, run.max_restarts, run.reached)
        logger.info("%s trained on %s rows by rank", type(self).__name__, list(outcome.rows))
        try:
            return self._create_model(outcome, plan)
        finally:
            outcome.result.close()

    def _begin_run(self, plan: ColumnPlan, payload: Payload) -> Run:
        """What a fit keeps, and how often it is launched again."""
        return Run(self._value(self.maxRestarts) or 0)

    def _gang_spec(self, spark: SparkSession, num_proc: int, plan: ColumnPlan, payload: Payload) -> GangSpec:
        return self._spec_of(spark, num_proc, plan, self.trainer, payload)
