"""The semantic matrix: models, losses, metrics and callbacks, run by N ranks and by plain Keras on each backend."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
from keras import layers, ops

from sparktrain.keras.spec import TrainSpec
from sparktrain.shards.reader import Shard
from sparktrain.shards.tensors import KEY, TensorSpec

FEATURES, CLASSES, SEED, HELD_OUT = 5, 3, 11, 4
SPLITS: dict[int, list[tuple[int, ...]]] = {2: [(6, 6), (0, 12)], 3: [(8, 0, 4)]}
SPEC = TrainSpec(
    batch_size=2,
    epochs=2,
    seed=SEED,
    shuffle=True,
    validation=None,
    validation_batch_size=None,
    validation_freq=1,
    sync_batchnorm=False,
    output_names=None,
)


def dense(outputs: int = 1, activation: Any = None, name: str | None = None) -> layers.Dense:
    return layers.Dense(outputs, activation=activation, name=name)


def mlp(outputs: int = 1, activation: Any = None) -> keras.Model:
    return keras.Sequential([layers.Input((FEATURES,)), layers.Dense(7, "tanh"), dense(outputs, activation)])


def with_batchnorm() -> keras.Model:
    return keras.Sequential([layers.Input((FEATURES,)), layers.Dense(7), layers.BatchNormalization(), dense()])


def embedded() -> keras.Model:
    return keras.Sequential(
        [
            layers.Input((FEATURES,), dtype="int32"),
            layers.Embedding(9, 4, mask_zero=True),
            layers.Dense(CLASSES, "softmax"),
        ]
    )


def recurrent() -> keras.Model:
    """Over the padded rows' masks."""
    return keras.Sequential(
        [
            layers.Input((FEATURES,), dtype="int32"),
            layers.Embedding(9, 4, mask_zero=True),
            layers.Bidirectional(layers.LSTM(3, return_sequences=True)),
            layers.GRU(4),
            layers.Dense(CLASSES, "softmax"),
        ]
    )


def regularised() -> keras.Model:
    kernel = {"kernel_regularizer": keras.regularizers.L2(0.05), "activity_regularizer": keras.regularizers.L1(0.02)}
    return keras.Sequential([layers.Input((FEATURES,)), layers.Dense(7, "tanh", **kernel), dense()])


def two_in_two_out() -> keras.Model:
    first, second = keras.Input((FEATURES,), name="a"), keras.Input((FEATURES,), name="b")
    hidden = layers.Concatenate()([layers.Dense(4, "tanh")(first), layers.Dense(3)(second)])
    return keras.Model([first, second], [dense(1, name="value")(hidden), dense(CLASSES, "softmax", "kind")(hidden)])


def by_name() -> keras.Model:
    first, second = keras.Input((FEATURES,), name="a"), keras.Input((FEATURES,), name="b")
    hidden = layers.Concatenate()([layers.Dense(4, "tanh")(first), layers.Dense(3)(second)])
    outputs = {"value": dense(1, name="value")(hidden), "kind": dense(CLASSES, "softmax", "kind")(hidden)}
    return keras.Model({"a": first, "b": second}, outputs)


def frozen() -> keras.Model:
    model = mlp()
    model.layers[0].trainable = False
    return model


class Subclassed(keras.Model):
    """Without get_config, and with an argument that has no default."""

    def __init__(self, units: int) -> None:
        super().__init__()
        self.hidden = [layers.Dense(units, "tanh"), layers.Dense(units)]
        self.last = layers.Dense(1)
        self.scale = self.add_weight(shape=(), initializer="ones", name="scale")

    def call(self, x: Any) -> Any:
        for layer in self.hidden:
            x = layer(x)
        return self.last(x) * self.scale


class OwnStep(keras.Model):
    """Trains by a step of its own, with the optimizer of its own backend."""

    def train_step(self, *arguments: Any) -> Any:
        if keras.backend.backend() == "jax":
            return super().train_step(*arguments)
        (x, y) = arguments[0]
        if keras.backend.backend() == "tensorflow":
            import tensorflow as tf

            with tf.GradientTape() as tape:
                loss = ops.mean(ops.square(self(x, training=True) - y))
            self.optimizer.apply_gradients(
                zip(tape.gradient(loss, self.trainable_weights), self.trainable_weights, strict=True)
            )
        else:
            import torch

            self.zero_grad()
            loss = ops.mean(ops.square(self(x, training=True) - y))
            loss.backward()
            with torch.no_grad():
                self.optimizer.apply([one.value.grad for one in self.trainable_weights], self.trainable_weights)
        self._loss_tracker.update_state(loss, sample_weight=ops.shape(x)[0])
        return {"loss": self._loss_tracker.result()}


def own_step() -> keras.Model:
    inputs = keras.Input((FEATURES,))
    return OwnStep(inputs, dense()(layers.Dense(7, "tanh")(inputs)))


def power(y_true: Any, y_pred: Any) -> Any:
    """A loss and metric of a row each."""
    return ops.mean(ops.abs(y_true - y_pred) ** 1.5, axis=-1)


def spread(y_true: Any, y_pred: Any) -> Any:
    """A metric of a whole batch."""
    return ops.mean(ops.abs(y_true - y_pred))


class Worst(keras.metrics.Metric):
    """A metric with states of its own, which add up."""

    def __init__(self, name: str = "worst") -> None:
        super().__init__(name=name)
        self.total = self.add_weight(shape=(), initializer="zeros", name="total")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        error = ops.mean(ops.abs(y_true - y_pred), axis=-1)
        self.total.assign_add(ops.sum(error if sample_weight is None else error * sample_weight))

    def result(self) -> Any:
        return self.total.value


@dataclass(frozen=True)
class Case:
    """One training.

    Parameters
    ----------
    name : str
    model : callable
    labels : tuple of str
        ``float``, ``binary``, ``class``, ``onehot`` or ``sequence``.
    compiled : callable
        Gives `Model.compile`'s keywords.
    inputs : tuple of str
        ``float`` or ``ids``.
    """

    name: str
    model: Callable[[], keras.Model]
    labels: tuple[str, ...]
    compiled: Callable[[], dict[str, Any]]
    inputs: tuple[str, ...] = ("float",)
    weighted: bool = False
    validates: bool = False
    class_weight: dict[int, float] | None = None
    callbacks: Callable[[], list[Any]] = list
    spec: dict[str, Any] = field(default_factory=dict)
    names: tuple[str, ...] | None = None
    seeds: bool = False
    """Whether the generator of dropout makes a difference."""
    skips: tuple[str, ...] = ()
    """Backends on which plain Keras does not run it."""


def sgd(rate: float = 0.1) -> Any:
    return keras.optimizers.SGD(rate, momentum=0.9)


CASES = [
    Case("mse", mlp, ("float",), lambda: {"optimizer": keras.optimizers.Adam(0.05), "loss": "mse", "metrics": ["mae"]}),
    Case(
        "weighted",
        mlp,
        ("float",),
        lambda: {"optimizer": sgd(), "loss": "mse", "metrics": ["mae"], "weighted_metrics": ["mae"]},
        weighted=True,
        validates=True,
    ),
    Case(
        "class_weight",
        lambda: mlp(CLASSES, "softmax"),
        ("class",),
        lambda: {"optimizer": sgd(), "loss": "sparse_categorical_crossentropy", "metrics": ["accuracy"]},
        class_weight={0: 0.5, 1: 1.0, 2: 3.0},
    ),
    Case(
        "sum",
        mlp,
        ("float",),
        lambda: {"optimizer": sgd(0.01), "loss": keras.losses.MeanSquaredError(reduction="sum")},
        weighted=True,
    ),
    Case(
        "mean_with_sample_weight",
        mlp,
        ("float",),
        lambda: {"optimizer": sgd(), "loss": keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")},
        weighted=True,
    ),
    Case(
        "binary",
        lambda: mlp(1, "sigmoid"),
        ("binary",),
        lambda: {
            "optimizer": sgd(),
            "loss": "binary_crossentropy",
            "metrics": [
                "accuracy",
                keras.metrics.AUC(num_thresholds=50, name="auc"),
                keras.metrics.Precision(name="precision"),
            ],
        },
        validates=True,
    ),
    Case(
        "onehot",
        lambda: mlp(CLASSES, "softmax"),
        ("onehot",),
        lambda: {"optimizer": sgd(), "loss": "categorical_crossentropy", "metrics": ["accuracy"]},
    ),
    Case(
        "function",
        mlp,
        ("float",),
        lambda: {"optimizer": sgd(), "loss": power, "metrics": ["mae", power, spread, Worst()]},
    ),
    Case("regularised", regularised, ("float",), lambda: {"optimizer": sgd(), "loss": "mse"}),
    Case("frozen", frozen, ("float",), lambda: {"optimizer": sgd(), "loss": "mse"}),
    Case(
        "masked",
        embedded,
        ("sequence",),
        lambda: {"optimizer": sgd(), "loss": "sparse_categorical_crossentropy", "metrics": ["accuracy"]},
        inputs=("ids",),
    ),
    Case(
        "ignored",
        lambda: mlp(CLASSES, "softmax"),
        ("class",),
        lambda: {"optimizer": sgd(), "loss": keras.losses.SparseCategoricalCrossentropy(ignore_class=1)},
    ),
    Case(
        "two_outputs",
        two_in_two_out,
        ("float", "class"),
        lambda: {
            "optimizer": sgd(0.01),
            "loss": ["mse", "sparse_categorical_crossentropy"],
            "loss_weights": [1.0, 0.3],
            "metrics": [["mae"], ["accuracy"]],
        },
        inputs=("float", "float"),
        weighted=True,
        validates=True,
    ),
    Case(
        "by_name",
        by_name,
        ("float", "class"),
        lambda: {
            "optimizer": sgd(0.01),
            "loss": {"value": "mse", "kind": "sparse_categorical_crossentropy"},
            "loss_weights": {"value": 1.0, "kind": 0.3},
            "metrics": {"value": ["mae"], "kind": ["accuracy"]},
        },
        inputs=("float", "float"),
        names=("a", "b"),
        spec={"output_names": ("value", "kind")},
    ),
    Case(
        "batchnorm",
        with_batchnorm,
        ("float",),
        lambda: {"optimizer": sgd(0.02), "loss": "mse"},
        spec={"sync_batchnorm": True},
        validates=True,
    ),
    Case(
        "subclassed", lambda: Subclassed(6), ("float",), lambda: {"optimizer": sgd(), "loss": "mse", "metrics": ["mae"]}
    ),
    Case("own_step", own_step, ("float",), lambda: {"optimizer": sgd(), "loss": "mse"}),
    Case(
        "steps_per_execution",
        mlp,
        ("float",),
        lambda: {"optimizer": sgd(), "loss": "mse", "metrics": ["mae"], "steps_per_execution": 2},
        skips=("torch",),
    ),
    Case(
        "recurrent",
        recurrent,
        ("class",),
        lambda: {"optimizer": sgd(), "loss": "sparse_categorical_crossentropy"},
        inputs=("ids",),
        weighted=True,
    ),
    Case(
        "schedule",
        mlp,
        ("float",),
        lambda: {
            "optimizer": keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.2, 2, 0.5)),
            "loss": "mse",
        },
    ),
    Case(
        "early_stopping",
        mlp,
        ("float",),
        lambda: {"optimizer": sgd(0.6), "loss": "mse"},
        validates=True,
        spec={"epochs": 8},
        callbacks=lambda: [
            keras.callbacks.EarlyStopping(patience=1, restore_best_weights=True),
            keras.callbacks.ReduceLROnPlateau(patience=0, factor=0.5),
        ],
    ),
    Case(
        "mixed",
        lambda: keras.Sequential([layers.Input((FEATURES,)), layers.Dense(7, "tanh", dtype="mixed_bfloat16"), dense()]),
        ("float",),
        lambda: {"optimizer": sgd(0.02), "loss": "mse"},
        seeds=True,
    ),
]


def rows_of(case: Case) -> dict[str, Any]:
    """All rows of a case: arrays by role, the held-out ones last."""
    random = np.random.default_rng(SEED)
    count = 12 + (HELD_OUT if case.validates else 0)
    features = random.normal(size=(count, FEATURES)).astype(np.float32)
    signal = features @ random.normal(size=FEATURES)
    kinds = np.digitize(signal, [-0.7, 0.7]).astype(np.int64)
    labels = {
        "float": signal.astype(np.float32),
        "binary": (signal > 0).astype(np.float32),
        "class": kinds,
        "onehot": np.eye(CLASSES, dtype=np.float32)[kinds],
        "sequence": random.integers(0, CLASSES, (count, FEATURES)),
    }
    inputs = {"float": features, "ids": random.integers(0, 9, (count, FEATURES))}
    return {
        "inputs": [inputs[kind] * (1 if number == 0 else -0.5) for number, kind in enumerate(case.inputs)],
        "labels": [labels[kind] for kind in case.labels],
        "weights": random.uniform(0.2, 3, count).astype(np.float32),
        "held_out": np.arange(count) >= 12,
    }


def shard_of(case: Case, split: tuple[int, ...], rank: int) -> Shard:
    """A rank's rows; held-out ones lie on the last rank. They arrive in an order that is not theirs."""
    rows = rows_of(case)
    start, stop = sum(split[:rank]), sum(split[: rank + 1])
    own = np.arange(start, stop)
    if case.validates and rank == len(split) - 1:
        own = np.concatenate([own, np.arange(12, 12 + HELD_OUT)])
    own = np.random.default_rng(rank).permutation(own)
    found: list[tuple[TensorSpec, Any]] = []
    for number, values in enumerate(rows["inputs"]):
        name = None if case.names is None else case.names[number]
        found.append(
            (TensorSpec(f"x{number}", "input", (), str(values.dtype), values.shape[1:], argument=name), values)
        )
    for number, values in enumerate(rows["labels"]):
        found.append((TensorSpec(f"y{number}", "label", (), str(values.dtype), values.shape[1:]), values))
    if case.weighted:
        found.append((TensorSpec("w", "weight", (), "float32", ()), rows["weights"]))
    if case.validates:
        found.append((TensorSpec("v", "validation", (), "bool", ()), rows["held_out"]))
    found.append((TensorSpec(KEY, "key", (), "int64", ()), np.arange(len(rows["held_out"]))))
    return Shard(tuple(spec for spec, _ in found), tuple(values[own] for _, values in found))


def built(case: Case) -> keras.Model:
    """The case's model, with the same weights in every process and on every backend."""
    model = case.model()
    if not model.built:
        model(np.zeros((1, FEATURES), np.float32))
    random = np.random.default_rng(SEED)
    for variable in model.variables:
        if "moving" not in variable.path and "seed" not in variable.path and "gamma" not in variable.path:
            variable.assign(random.normal(size=variable.shape, scale=0.5).astype(np.float32))
    return model
