"""The PyTorch trainer: epochs of exact global batches on one rank. Runs in the worker process.

One step of N ranks equals one step of a single process on the concatenated batch: each rank's loss is
scaled so that the mean of the ranks' gradients is the gradient of the global loss, whatever share of
the rows each rank brings, down to none.
"""

from __future__ import annotations

import contextlib
import copy
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch._dynamo  # an optimizer imports it when first made; here that overlaps the spool
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from sparktrain.arguments import TransformBatch
from sparktrain.errors import ParamError
from sparktrain.gang.worker import Event, WorkerContext
from sparktrain.shards import plan
from sparktrain.shards.reader import Shard, open_shard
from sparktrain.shards.split import Split
from sparktrain.store.checkpoints import CheckpointSpec, Position
from sparktrain.store.run import check_seen
from sparktrain.torch import bundle
from sparktrain.torch.averaging import Averaging
from sparktrain.torch.batchnorm import synchronise
from sparktrain.torch.callbacks import Callback, TrainState
from sparktrain.torch.checkpoint import Saver
from sparktrain.torch.collective import Alone, Collective, TorchDistributed, joining
from sparktrain.torch.denominators import Denominators
from sparktrain.torch.loss import Criterion
from sparktrain.torch.metrics import EpochMeans, is_metric_object
from sparktrain.torch.optim import optimizer_of, scheduler_of
from sparktrain.torch.precision import Precision
from sparktrain.torch.progress import Progress
from sparktrain.torch.spec import TrainSpec
from sparktrain.torch.state import FitState, State, generators, load_tensors, numbers, set_generators, tensors_of
from sparktrain.torch.step import Batch, Feed, LossStep, StepResult
from sparktrain.torch.strategy import DataParallel, Strategy


@dataclass
class TrainObjects:
    """The user's objects, unpickled together: the optimizer holds the model's own parameters."""

    model: nn.Module
    optimizer: Any
    losses: list[Any]
    metrics: Mapping[str, Any]
    lr_scheduler: Any = None
    transform_batch: TransformBatch | None = None
    callbacks: list[Callback] = field(default_factory=list)


def train(context: WorkerContext) -> dict[str, Any]:
    """The worker's entry: train, and leave the final tensors in rank 0's result file."""
    job = context.job
    spec: TrainSpec = context.payload["spec"]
    checkpoints: CheckpointSpec | None = context.payload.get("checkpoints")
    if checkpoints is not None:
        check_seen(checkpoints.run_url, f"rank {context.gang.rank} on {context.gang.hosts[context.gang.rank]}")
    if job.payload_path:
        tensors = bundle.tensors_from_file(job.payload_path)
    else:
        tensors = bundle.tensors_from_bytes(context.payload["tensors"])
    owned = {name: tensor.clone() for name, tensor in tensors.items()}
    objects: TrainObjects = bundle.load(context.payload["objects"], owned)
    shard = open_shard(job.tensors, job.tensor_fds, job.rows)
    device = torch.device("cuda", 0) if context.gang.device == "cuda" else torch.device("cpu")
    with joining(job.backend)(context.gang, job.listen_fd) as collective:
        trainer = Trainer(spec, objects, shard, collective, device, context.emit, checkpoints=checkpoints)
        history = trainer.fit()
    if context.gang.rank == 0:
        _write_result(objects.model, job.result_fd)
    return {
        "history": history if context.gang.rank == 0 else None,
        "inputs": [spec.shape for spec in shard.specs("input")],
        "outputs": trainer.output_shapes,
        "warnings": trainer.warnings,
        "checkpoints": trainer.checkpoints,
    }


def _write_result(model: nn.Module, fd: int) -> None:
    with os.fdopen(os.dup(fd), "wb") as file:
        file.write(bundle.to_bytes({name: bundle.plain(tensor) for name, tensor in tensors_of(model).items()}))


class Trainer:
    """Trains one rank's share of a fit.

    Parameters
    ----------
    spec : TrainSpec
    objects : TrainObjects
    shard : Shard
    collective : Collective
        The peers; every rank constructs and runs its trainer in the same order.
    device : torch.device
    emit : callable
        Takes progress events.
    strategy : Strategy or None
        By default as the collective allows.
    checkpoints : CheckpointSpec or None
        None: it writes none.
    """

    def __init__(
        self,
        spec: TrainSpec,
        objects: TrainObjects,
        shard: Shard,
        collective: Collective,
        device: torch.device,
        emit: Callable[[Event], None],
        strategy: Strategy | None = None,
        checkpoints: CheckpointSpec | None = None,
    ) -> None:
        self._spec = spec
        self._shard = shard
        self._metrics, self._val_metrics = (_copies(objects.metrics, device) for _ in range(2))
        self._callbacks = objects.callbacks
        self._collective = collective
        self._emit = emit
        self._device = device
        self.output_shapes: list[tuple[str, list[int]]] | None = None

        self._split = Split.of(shard, spec.validation, spec.seed, collective.gather)
        self._rows_by_rank = self._split.rows_by_rank
        self._steps = plan.steps_per_epoch(self._rows_by_rank, spec.step_rows)

        self._model = objects.model.to(device)
        if spec.sync_batchnorm:
            self._model = synchronise(self._model, collective, device)
        self._feed = Feed(shard, device, objects.transform_batch)
        self._relabels = objects.transform_batch is not None
        self._criteria = [Criterion(loss) for loss in objects.losses]
        counted = self._counted_denominators()
        self._denominators = Denominators(self._criteria, counted, shard.weights is not None, collective, device)
        self._precision = Precision(spec.mixed_precision, device)
        self._step = LossStep(
            self._model,
            self._criteria,
            spec.loss_weights,
            counted,
            self._precision,
            all_used=not spec.find_unused_parameters,
        ).to(device)
        self._strategy = strategy or replicas(collective, spec)
        self._wrapped = self._strategy.wrap(self._step)
        self._optimizer: Optimizer = optimizer_of(objects.optimizer, self._model)
        self._precision.watch(self._optimizer)
        self._trained_parameters = [p for group in self._optimizer.param_groups for p in group["params"]]
        self._scheduler = scheduler_of(objects.lr_scheduler, self._optimizer)
        self._state = TrainState(
            collective.rank, collective.world_size, self._model, self._optimizer, spec.epochs, steps=self._steps
        )
        self._fit_state = FitState(self._state, self._precision, self._scheduler, self._callbacks)
        self._fingerprint = "" if checkpoints is None else self._of_all_rows()
        self._saver = None if checkpoints is None else Saver(checkpoints, collective, self._facts())
        self._begun, self._rate = 0.0, 0.0

    @property
    def warnings(self) -> list[str]:
        """For the driver."""
        return [] if self._saver is None else self._saver.warnings

    @property
    def checkpoints(self) -> dict[str, float] | None:
        """How many this rank has written, and how many seconds training waited, and writing took."""
        saver = self._saver
        if saver is None:
            return None
        return {"written": saver.written, "stalled_s": saver.stalled_s, "writing_s": saver.writing_s}

    def _counted_denominators(self) -> list[bool]:
        """For each loss, whether labels anywhere in the gang need its denominator counted by label."""
        pairs = zip(self._criteria, self._feed.labels, strict=True)
        found = [criterion.ignores(labels, any_label=self._relabels) for criterion, labels in pairs]
        mine = torch.tensor(found, dtype=torch.int64)
        return [bool(count) for count in self._collective.sum(mine)]

    def fit(self) -> list[dict[str, float]]:
        """Train all epochs, or until a callback stops.

        Returns
        -------
        list of dict
            One an epoch: ``epoch`` (from 1), ``loss``, each metric, their ``val_`` forms, ``lr`` (of the
            first parameter group, at the epoch's start), ``rows_per_s`` (all ranks), ``seconds``; with fp16 also
            ``skipped_steps``, whose gradients overflowed.
        """
        state = self._state
        self._call(Callback.on_train_begin)
        start, own = self._resume()
        for epoch in range(start.epoch, self._spec.epochs):
            if state.should_stop:
                break
            state.epoch = epoch + 1
            state.history.append(self._epoch(epoch, start.step if epoch == start.epoch else 0, own))
            self._call(Callback.on_epoch_end)
            if self._callbacks:
                state.should_stop = any(self._collective.gather(int(state.should_stop)))
            self._save_after(epoch + 1)
        self._call(Callback.on_train_end)
        if self._saver is not None:
            self._saver.finish()
        if self._collective.rank == 0:
            self._emit({"kind": "finished"})
        return [numbers(entry) for entry in state.history]

    def _call(self, point: Callable[[Callback, TrainState], None]) -> None:
        for callback in self._callbacks:
            getattr(callback, point.__name__)(self._state)

    def _epoch(self, epoch: int, first_step: int, own: State) -> dict[str, float]:
        """One epoch, or what is left of it; `own` is this rank's state after the steps before the first one."""
        if first_step:
            self._begun = time.perf_counter() - own["seconds"]
        else:
            self._begun = time.perf_counter()
            self._state.step = 0
            _seed_everything(self._spec.seed, epoch, self._collective.rank)
            self._call(Callback.on_epoch_begin)
            self._rate = float(self._optimizer.param_groups[0]["lr"])
        started = self._begun
        means = self._train_epoch(epoch, first_step, own)
        trained = time.perf_counter() - started
        self._strategy.end_epoch(self._model, means.local_rows)
        entry: dict[str, float] = {"epoch": epoch + 1}
        entry |= means.reduce(self._collective, self._spec.loss_weights)
        if self._split.validates:
            entry |= self._evaluate().reduce(self._collective, self._spec.loss_weights, prefix="val_")
        if self._spec.lr_scheduler_interval == "epoch":
            self._step_scheduler(entry)
        skipped = self._precision.skipped_steps()
        if skipped is not None:
            entry["skipped_steps"] = skipped
        entry["lr"] = self._rate
        entry["rows_per_s"] = sum(self._rows_by_rank) / trained
        entry["seconds"] = time.perf_counter() - started
        return entry

    def _train_epoch(self, epoch: int, first_step: int, own: State) -> EpochMeans:
        spec = self._spec
        order = self._split.epoch_order(epoch, seed=spec.seed, shuffle=spec.shuffle)
        means = EpochMeans([one.link for one in self._criteria], self._metrics)
        progress = Progress(self._emit, epoch + 1, spec, self._steps, active=self._collective.rank == 0)
        self._model.train()
        if first_step:
            means.load(own["means"])
            set_generators(own["generators"], self._device)
        for step in range(first_step, self._steps):
            global_rows = sum(plan.rows_in_step(self._rows_by_rank, spec.step_rows, step))
            rows = order[step * spec.step_rows : (step + 1) * spec.step_rows]
            self._train_step(self._batches(rows, step), global_rows, means)
            self._state.step = step + 1
            self._call(Callback.on_step_end)
            progress.report(step + 1, global_rows, means)
            self._save_within(epoch, step + 1, means)
        return means

    def _facts(self) -> dict[str, Any]:
        """What must be the same where an epoch goes on in its middle."""
        return {
            "world_size": self._collective.world_size,
            "step_rows": self._spec.step_rows,
            "seed": self._spec.seed,
            "shuffle": self._spec.shuffle,
            "rows": list(self._rows_by_rank),
            "digest": str(self._split.digest),
            "fingerprint": self._fingerprint,
        }

    def _of_all_rows(self) -> str:
        """What the gang's rows have in common however they are dealt to ranks."""
        shard = self._shard
        columns = [one for one in (*shard.labels, *shard.inputs) if isinstance(one, np.ndarray)]
        mine = str(plan.fingerprint(shard.keys, columns)).encode()
        return str(sum(int(one) for one in self._collective.gather_bytes(mine)) % 2**64)

    def _resume(self) -> tuple[Position, State]:
        """Where to go on, and what this rank had added up of that epoch; the rest is as it was there."""
        if self._saver is None:
            return Position(0), {}
        self._fit_state.check()
        found = self._saver.restore()
        if found is None:
            return Position(0), {}
        position, state, own = found
        if position.epoch > self._spec.epochs:
            raise ParamError(
                f"epochs={self._spec.epochs}: the run that is to be gone on with has trained {position.epoch} already"
            )
        if self._saver.rows_differ and (state["stopped"] or position.epoch == self._spec.epochs):
            raise ParamError("run_id: that run is finished, and was trained on other rows; take another run_id")
        self._fit_state.load(state, self._device)
        self.output_shapes = None if state["outputs"] is None else [(name, shape) for name, shape in state["outputs"]]
        self._rate = state["lr"]
        self._state.epoch, self._state.step = position.epoch + (position.step > 0), position.step
        if own:
            load_tensors(self._model, own["buffers"], self._device)
        return position, own

    def _save_within(self, epoch: int, step: int, means: EpochMeans) -> None:
        if self._saver is None or step == self._steps or not self._saver.is_due_within(epoch * self._steps + step):
            return
        own = {
            "facts": self._facts(),
            "generators": generators(self._device),
            "means": means.state(),
            "buffers": dict(self._model.named_buffers()),
            "seconds": time.perf_counter() - self._begun,
        }
        whole = self._whole_state() if self._collective.rank == 0 else {}
        self._saver.save(Position(epoch, step), {**whole, **own}, alone=False, history=self._state.history)

    def _save_after(self, epochs: int) -> None:
        last = epochs == self._spec.epochs or self._state.should_stop
        if self._saver is not None and self._saver.is_due_after(epochs, last=last):
            state = self._whole_state() if self._collective.rank == 0 else {}
            self._saver.save(Position(epochs), state, alone=True, history=self._state.history)

    def _whole_state(self) -> State:
        """What all ranks have in common."""
        return {**self._fit_state.state(), "outputs": self.output_shapes, "lr": self._rate}

    def _batches(self, rows: plan.Indices, step: int) -> list[Batch]:
        """A step's rows in batches; where the model holds collectives, as many (perhaps empty) as the peers have."""
        size = self._spec.batch_size
        until = len(rows)
        if self._spec.sync_batchnorm:
            until = max(plan.rows_in_step(self._rows_by_rank, self._spec.step_rows, step))
        return [self._feed.batch(rows[start : start + size], training=True) for start in range(0, until, size)]

    def _train_step(self, batches: list[Batch], global_rows: int, means: EpochMeans) -> None:
        """One optimizer step: the gradients of all batches add up, and are exchanged with the last one's.

        Every rank exchanges once, also one that has fewer batches in this step, or none.
        """
        with self._columns_named():
            shares = [self._denominators.local(batch, global_rows) for batch in batches]
        scales = self._denominators.scales(shares, global_rows)
        self._optimizer.zero_grad(set_to_none=True)
        for batch, share in zip(batches[:-1], shares[:-1], strict=True):
            with self._strategy.local_gradients(self._wrapped):
                self._backward(batch, share, scales, means)
        self._backward(batches[-1] if batches else None, shares[-1] if shares else None, scales, means)
        self._precision.step(self._optimizer, self._trained_parameters, self._spec.max_grad_norm)
        if self._spec.lr_scheduler_interval == "step":
            self._step_scheduler({})

    def _backward(
        self, batch: Batch | None, share: Tensor | None, scales: Sequence[Tensor | float], means: EpochMeans
    ) -> None:
        with self._columns_named():
            loss, result = self._wrapped(batch, scales)
            if loss.requires_grad:
                self._precision.scaled(loss).backward()  # type: ignore[no-untyped-call]
        if batch is not None and share is not None and result is not None:
            self._record(result, share, batch.rows, means)

    @contextlib.contextmanager
    def _columns_named(self) -> Iterator[None]:
        """An error from inside the model or loss also says which columns came in which dtype and shape."""
        try:
            yield
        except Exception as error:
            inputs, labels = (", ".join(s.describe() for s in self._shard.specs(role)) for role in ("input", "label"))
            error.add_note(f"model inputs: {inputs}; labels: {labels}")
            if "more than 1 value per channel" in str(error):
                whose, more = "this rank", ", or sync_batchnorm=True"
                if self._spec.sync_batchnorm:
                    whose, more = "the gang", ""
                error.add_note(
                    f"BatchNorm can't train on a single row, all that {whose} has in its last batch: choose another "
                    f"batch_size{more}"
                )
            raise

    def _record(self, result: StepResult, denominators: Tensor, rows: int, means: EpochMeans) -> None:
        means.add_loss(result.numerators, denominators)
        means.add_metrics(result.outputs, result.targets, rows)
        if self.output_shapes is None:
            self.output_shapes = [
                (str(output.dtype).removeprefix("torch."), list(output.shape[1:])) for output in result.outputs
            ]

    def _evaluate(self) -> EpochMeans:
        means = EpochMeans([one.link for one in self._criteria], self._val_metrics)
        size = self._spec.batch_size
        global_batch = self._spec.step_rows * self._collective.world_size
        self._model.eval()
        with torch.no_grad():
            for start in range(0, len(self._split.validation), size):
                batch = self._feed.batch(self._split.validation[start : start + size], training=False)
                with self._columns_named():
                    outputs, targets, numerators = self._step.evaluate(batch)
                means.add_loss(torch.stack(numerators), self._denominators.local(batch, global_batch))
                means.add_metrics(outputs, targets, batch.rows)
        return means

    def _step_scheduler(self, entry: Mapping[str, float]) -> None:
        if isinstance(self._scheduler, ReduceLROnPlateau):
            self._scheduler.step(entry.get("val_loss", entry["loss"]))
        elif self._scheduler is not None:
            self._scheduler.step()


def replicas(collective: Collective, spec: TrainSpec) -> Strategy:
    """Data parallelism: by torch's own module where its process groups are what connects the ranks."""
    kind = DataParallel if isinstance(collective, (Alone, TorchDistributed)) else Averaging
    return kind(collective, spec.find_unused_parameters, spec.gradient_compression)


def _copies(metrics: Mapping[str, Any], device: torch.device) -> dict[str, Any]:
    """Metrics for one kind of pass: objects that accumulate (torchmetrics) are modules, on the trainer's device."""
    copies = copy.deepcopy(dict(metrics))
    return {name: metric.to(device) if is_metric_object(metric) else metric for name, metric in copies.items()}


def _seed_everything(seed: int, epoch: int, rank: int) -> None:
    """Dropout and the like differ by rank and epoch, and are the same whenever this epoch runs."""
    derived = int(np.random.SeedSequence([seed, epoch, rank]).generate_state(1)[0])
    torch.manual_seed(derived)
    np.random.seed(derived)
    random.seed(derived)
