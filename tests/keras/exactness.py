"""What the ranks of `test_exactness` do, and the same in plain Keras."""

from __future__ import annotations

import dataclasses
import itertools
import os
from typing import Any

import keras
import numpy as np

from sparktrain.keras import archive
from sparktrain.keras.layout import Distribute, set_distribution
from sparktrain.keras.trainer import Trainer, TrainObjects
from sparktrain.shards import plan
from tests.keras.cases import CASES, SEED, SPEC, SPLITS, Case, built, rows_of, shard_of


def key(case: Case, split: tuple[int, ...]) -> str:
    return f"{case.name} {split}"


def chosen(world: int) -> list[tuple[Case, tuple[int, ...]]]:
    backend = keras.backend.backend()
    only = os.environ.get("SPARKTRAIN_CASES", "").split()  # to look into some
    return [
        (case, split)
        for case in CASES
        if not only or case.name in only
        for split in SPLITS[world]
        if backend not in case.skips and not (backend == "jax" and case.name == "own_step" and len(set(split)) > 1)
    ]


def train(peers: Any, tensors: Any, distribute: Distribute | None = None) -> dict[str, Any]:
    """Each case on this rank: the model travels as to a worker."""
    layout = set_distribution(distribute, peers.world_size) if tensors is None else None
    results = {}
    for case, split in chosen(peers.world_size):
        keras.utils.set_random_seed(SEED)
        spec = dataclasses.replace(SPEC, **case.spec)
        objects = TrainObjects(built(case), case.compiled(), case.callbacks(), case.class_weight)
        objects = archive.loads(archive.dumps(objects))
        try:
            shard = shard_of(case, split, peers.rank)
            trainer = Trainer(spec, objects, shard, peers, tensors, lambda event: None, layout)
            history = trainer.fit()
        except BaseException as error:
            error.add_note(f"in case {key(case, split)}")
            raise
        results[key(case, split)] = (trainer.values(), history)
    return results


class Whole(keras.utils.PyDataset):
    """The global batches of all ranks."""

    def __init__(self, case: Case, split: tuple[int, ...], *, held_out: bool) -> None:
        super().__init__()
        self._case, self._split, self._held_out = case, split, held_out
        self._rows = rows_of(case)
        self.epoch = 0

    @property
    def num_batches(self) -> int:
        size = SPEC.batch_size
        return -(-int(self._rows["held_out"].sum()) // size) if self._held_out else -(-max(self._split) // size)

    def __getitem__(self, step: int) -> Any:
        part = slice(step * SPEC.batch_size, (step + 1) * SPEC.batch_size)
        case, rows = self._case, np.concatenate([order[part] for order in self._orders()])
        x, y = ([values[rows] for values in self._rows[name]] for name in ("inputs", "labels"))
        y = [values[:, None] if values.ndim == 1 else values for values in y]  # as a user of custom losses gives them
        weights = self._rows["weights"][rows] if case.weighted else None
        if case.class_weight is not None and not self._held_out:
            weights = np.array([case.class_weight[int(one[0])] for one in y[0]], np.float32)
        given: Any = x[0] if len(x) == 1 else x
        labels: Any = y[0] if len(y) == 1 else y
        if case.names is not None:
            given, labels = dict(zip(case.names, x, strict=True)), dict(zip(case.spec["output_names"], y, strict=True))
        batch = (given, labels) if weights is None else (given, labels, weights)
        return keras.tree.lists_to_tuples(batch)

    def _orders(self) -> list[np.ndarray]:
        if self._held_out:
            return [np.flatnonzero(self._rows["held_out"])]
        starts = np.cumsum((0, *self._split))
        orders = []
        for start, stop in itertools.pairwise(starts):
            keys = np.arange(start, stop)
            digest = plan.digest(keys, np.arange(len(keys)))
            orders.append(plan.epoch_order(keys, seed=SEED, epoch=self.epoch, shard_digest=digest, shuffle=True))
        return orders


class Count(keras.callbacks.Callback):
    def __init__(self, data: Whole) -> None:
        super().__init__()
        self._data = data

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._data.epoch = epoch


def plain(peers: Any, tensors: Any) -> dict[str, Any]:
    """Each case as a user of Keras alone writes it, for the splits of all gangs."""
    results = {}
    for world in SPLITS:
        for case, split in chosen(world):
            keras.utils.set_random_seed(SEED)
            model = built(case)
            model.compile(**case.compiled())
            data = Whole(case, split, held_out=False)
            fitted = model.fit(
                data,
                epochs=case.spec.get("epochs", SPEC.epochs),
                validation_data=Whole(case, split, held_out=True) if case.validates else None,
                shuffle=False,
                verbose=0,
                callbacks=[Count(data), *case.callbacks()],
            )
            results[key(case, split)] = (archive.values_of(model.variables), fitted.history)
    return results
