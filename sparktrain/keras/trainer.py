"""The Keras trainer: `Model.fit` on one rank of a gang, with the results of one process. Runs in the worker process."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import keras
from keras import tree

from sparktrain.arguments import TransformBatch, argument_names
from sparktrain.errors import ParamError
from sparktrain.gang.worker import Event, WorkerContext
from sparktrain.keras import archive, paths
from sparktrain.keras.batchnorm import MovingAverages, batchnorms_of, joint_moments
from sparktrain.keras.callbacks import First, Last, of_rank
from sparktrain.keras.feed import Batches, Columns, row_weights
from sparktrain.keras.join import join
from sparktrain.keras.layout import Layout, set_distribution
from sparktrain.keras.lean import without_tensorflow
from sparktrain.keras.lockstep import Lockstep, Tensors, optimizers_of
from sparktrain.keras.losses import Rows, global_losses, metrics_by_row
from sparktrain.keras.overrides import Overrides
from sparktrain.keras.padded import Padded, filled_up
from sparktrain.keras.peers import Peers
from sparktrain.keras.spec import TrainSpec
from sparktrain.keras.spread import is_spread, save_together
from sparktrain.shards import plan
from sparktrain.shards.reader import Shard, open_shard
from sparktrain.shards.split import Split
from sparktrain.store.folder import Folder


@dataclass
class TrainObjects:
    """The user's objects.

    Parameters
    ----------
    model : Model
    compiled : mapping
        Keywords of `Model.compile`.
    callbacks : list of Callback
    class_weight : mapping or None
    transform_batch : callable or None
    custom_objects : mapping
    """

    model: keras.Model
    compiled: Mapping[str, Any]
    callbacks: list[keras.callbacks.Callback] = field(default_factory=list)
    class_weight: Mapping[int, float] | None = None
    transform_batch: TransformBatch | None = None
    custom_objects: Mapping[str, Any] = field(default_factory=dict)


def train(context: WorkerContext) -> dict[str, Any]:
    """The worker's entry: train, and leave the final values in rank 0's result file."""
    job = context.job
    spec: TrainSpec = context.payload["spec"]
    shard = open_shard(job.tensors, job.tensor_fds, job.rows)
    with without_tensorflow():
        keras.utils.set_random_seed(spec.seed)
    keras.config.set_dtype_policy(keras.dtype_policies.deserialize(spec.dtype_policy))
    with join(context.gang, job.listen_fd, job.backend) as (peers, tensors):
        layout = None
        if tensors is None:  # before the model is made
            distribute = context.payload["distribution"]
            layout = set_distribution(None if distribute is None else archive.loads(distribute), peers.world_size)
        if job.payload_path:
            with open(job.payload_path, "rb") as file:
                data = file.read()
        else:
            data = context.payload["objects"]
        objects: TrainObjects = archive.loads(data)
        with keras.saving.custom_object_scope(objects.custom_objects):
            folder = Folder(spec.folder, context.scratch)
            paths.put_into(folder, objects.callbacks, writes=peers.rank == 0)
            if peers.rank == 0 and not folder.is_local:
                objects.callbacks.append(paths.Upload(folder))
            trainer = Trainer(spec, objects, shard, peers, tensors, context.emit, layout)
            history = trainer.fit()
            values = trainer.values()
    if peers.rank == 0:
        with os.fdopen(os.dup(job.result_fd), "wb") as file:
            pickle.dump(values, file)
    return {
        "history": history if peers.rank == 0 else None,
        "inputs": [one.shape for one in shard.specs("input")],
        "outputs": trainer.outputs,
        "folder": spec.folder,
    }


class Trainer:
    """Trains one rank's share of a fit.

    Parameters
    ----------
    spec : TrainSpec
    objects : TrainObjects
    shard : Shard
    peers : Peers
        Every rank constructs and runs its trainer in the same order.
    tensors : Tensors or None
        None on JAX.
    emit : callable
        Takes progress events.
    layout : Layout or None
        On JAX, of several ranks or devices.
    """

    def __init__(
        self,
        spec: TrainSpec,
        objects: TrainObjects,
        shard: Shard,
        peers: Peers,
        tensors: Tensors | None,
        emit: Callable[[Event], None],
        layout: Layout | None = None,
    ) -> None:
        self._spec, self._peers, self._tensors, self._emit, self._layout = spec, peers, tensors, emit, layout
        self._model, self._compiled, self._objects = objects.model, dict(objects.compiled), objects
        self._split = Split.of(shard, spec.validation, spec.seed, peers.gather)
        self._val_batch = spec.validation_batch_size or spec.batch_size
        self._steps = plan.steps_per_epoch(self._split.rows_by_rank, spec.batch_size)
        self._val_steps = plan.steps_per_epoch(self._split.validation_by_rank, self._val_batch)
        weights = row_weights(shard.weights, shard.labels, objects.class_weight)
        self._columns = Columns(
            self._model,
            shard.inputs,
            argument_names(shard.specs("input")),
            shard.labels,
            spec.output_names,
            weights,
            objects.transform_batch,
        )
        self._rows = Rows(self._add_up)
        self._lockstep: Lockstep | None = None
        self._devices = 1 if layout is None else layout.local_devices
        self._pads = layout is not None and not self._is_even()
        self._build()

    @property
    def outputs(self) -> list[tuple[str, list[int]]]:
        """Dtype and shape of a row of each output."""
        return [(one.dtype, list(one.shape[1:])) for one in tree.flatten(self._output_specs)]

    def _add_up(self, vector: Any) -> Any:
        return vector if self._lockstep is None else self._lockstep.add_up(vector)

    def _is_even(self) -> bool:
        """Whether all devices of all ranks get equally many rows in each step."""
        parts = (self._split.rows_by_rank, self._spec.batch_size), (self._split.validation_by_rank, self._val_batch)
        return all(
            len(set(rows)) == 1 and size % self._devices == 0 and rows[0] % size % self._devices == 0
            for rows, size in parts
        )

    def _build(self) -> None:
        """Make all variables, of model, optimizer, losses and metrics, the same on every rank."""
        model = self._model
        blank = self._columns.zeros(2)
        specs = tree.map_structure(
            lambda one: keras.KerasTensor((None, *one.shape[1:]), keras.backend.standardize_dtype(one.dtype)), blank[0]
        )
        self._output_specs = model(specs)
        self._columns = replace(self._columns, as_column=self._are_columns())
        blank = self._columns.zeros(2)
        self._compile()
        model._symbolic_build(data_batch=blank if blank[2] is not None else blank[:2])
        optimizer = model.optimizer
        if optimizer is not None:
            archive.with_values(optimizer, model.trainable_variables)
            if not optimizer.built:
                optimizer.build(model.trainable_variables)
        if not model.trainable_variables:
            raise ParamError("model: it has no trainable weights, so there is nothing to train")
        if self._tensors is not None and self._peers.world_size > 1:
            variables = [*model.variables, *(v for one in optimizers_of(model) for v in one.variables)]
            values = self._peers.from_rank(0, archive.values_of(variables))
            archive.assign(variables, values, "model")

    def _are_columns(self) -> tuple[bool, ...]:
        """Of each label, whether its output has one value a row: a label without that axis would be broadcast."""
        names = self._spec.output_names
        outputs = self._output_specs
        specs = [outputs[name] for name in names] if names is not None else tree.flatten(outputs)
        return tuple(tuple(one.shape[1:]) == (1,) for one in specs)

    def _compile(self) -> None:
        """Compile as the user did, with losses and metrics that count the rows of all ranks."""
        given = self._compiled
        keras.Model.compile(self._model, **given)
        kept, loss = self._model._compile_config, self._model.loss
        if self._peers.world_size > 1 or self._pads:
            joint = {
                **given,
                "optimizer": self._model.optimizer,
                "loss": global_losses(given.get("loss"), self._rows),
                "metrics": metrics_by_row(given.get("metrics")),
                "weighted_metrics": metrics_by_row(given.get("weighted_metrics")),
            }
            keras.Model.compile(self._model, **joint)
            self._model._compile_config, self._model.loss = kept, loss  # what a checkpoint is saved with

    def fit(self) -> list[dict[str, Any]]:
        """Train all epochs, or until a callback stops.

        Returns
        -------
        list of dict
            One an epoch: ``epoch`` (from 1), ``loss``, each metric, their ``val_`` forms, ``lr`` (at the epoch's
            start), ``rows_per_s`` (all ranks), ``seconds``.
        """
        spec, model, split = self._spec, self._model, self._split
        feed = self._feed(lambda epoch: split.epoch_order(epoch, seed=spec.seed, shuffle=spec.shuffle), training=True)
        held_out = self._feed(lambda epoch: split.validation, training=False) if split.validates else None
        with Overrides() as overrides:
            averages = self._install(overrides)
            self._rehearse()
            last = Last(
                self._peers,
                self._lockstep,
                rows=sum(split.rows_by_rank),
                epochs=spec.epochs,
                steps=self._steps,
                emit=self._emit,
            )
            model.fit(
                feed,
                epochs=spec.epochs,
                validation_data=held_out,
                validation_freq=spec.validation_freq,
                shuffle=False,
                verbose=0,
                callbacks=[
                    First(feed, averages, self._lockstep),
                    *of_rank(self._objects.callbacks, self._peers, spread=self._is_spread()),
                    last,
                ],
            )
            if averages is not None:
                averages.finish()
        if self._peers.rank == 0:
            self._emit({"kind": "finished"})
        return last.history

    def _install(self, overrides: Overrides) -> MovingAverages | None:
        """Put into the model what makes it one of a gang; the averages are those that this backend does not share."""
        model, averages = self._model, None
        if self._peers.world_size > 1 and self._tensors is not None:
            averages = MovingAverages(
                model, self._peers, self._split.rows_by_rank, synchronised=self._spec.sync_batchnorm
            )
            self._lockstep = self._in_lockstep(self._tensors, overrides)
            self._lockstep.install(overrides)
        elif self._pads:
            Padded(model, self._rows, weighted=self._columns.weights is not None).install(overrides)
        if self._layout is not None:
            self._layout.install(model, overrides)
        if self._is_spread():
            save_together(model, self._peers, overrides)
        return averages

    def _is_spread(self) -> bool:
        return any(is_spread(one) for one in self._model.variables)

    def values(self) -> dict[str, Any]:
        """What training has made: values of the model's and its optimizer's variables, and how to build it."""
        model = self._model
        optimizer = model.optimizer
        return {
            "model": archive.values_of(model.variables),
            "optimizer": None if optimizer is None else archive.values_of(optimizer.variables),
            "build_config": model.get_build_config(),
        }

    def _feed(self, order: Callable[[int], plan.Indices], *, training: bool) -> Batches:
        size, steps = (self._spec.batch_size, self._steps) if training else (self._val_batch, self._val_steps)
        finish = filled_up(-(-size // self._devices) * self._devices, self._spare()) if self._pads else None
        return Batches(self._columns, order, size, steps, training=training, finish=finish)

    def _spare(self) -> tuple[Any, Any, Any]:
        """A row to fill up batches with, from the rank that has most."""
        most = self._split.rows_by_rank.index(max(self._split.rows_by_rank))
        x, y, weights = self._columns.take(self._split.train[:1], training=False)
        leaves = self._peers.from_rank(most, tree.flatten((x, y)))
        x, y = tree.pack_sequence_as((x, y), leaves)
        return x, y, weights

    def _in_lockstep(self, tensors: Tensors, overrides: Overrides) -> Lockstep:
        spec, split, rank = self._spec, self._split, self._peers.rank
        last = plan.rows_in_step(split.rows_by_rank, spec.batch_size, self._steps - 1)[rank]
        val_last = plan.rows_in_step(split.validation_by_rank, self._val_batch, self._val_steps - 1)[rank]
        lockstep = Lockstep(
            self._model,
            self._peers,
            tensors,
            self._rows,
            idles=last == 0 or (split.validates and val_last == 0),
            last_rows={"train": last, "test": val_last},
            compresses=spec.gradient_compression == "fp16",
        )
        if spec.sync_batchnorm:
            for layer in batchnorms_of(self._model):
                overrides.put(layer, "_moments", joint_moments(layer, lockstep.add_up_differentiably))
        return lockstep

    def _rehearse(self) -> None:
        """On the PyTorch backend nothing is traced: a rank without rows learns the others' exchanges from a try."""
        lockstep = self._lockstep
        if lockstep is None or not lockstep.idles or keras.backend.backend() != "torch":
            return
        import torch

        blank = self._columns.zeros(2)
        data = tree.map_structure(keras.ops.convert_to_tensor, tuple(one for one in blank if one is not None))
        state = torch.random.get_rng_state()
        lockstep.rehearse("train", lambda: self._model.train_step(data))
        with torch.no_grad():
            lockstep.rehearse("test", lambda: self._model.test_step(data))
        torch.random.set_rng_state(state)
