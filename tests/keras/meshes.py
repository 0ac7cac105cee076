"""What the ranks of `test_layout` do: two ranks of two devices each, on JAX."""

from __future__ import annotations

import dataclasses
import os
import tempfile
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import distribution, layers

from sparktrain.errors import ParamError
from sparktrain.keras import archive
from sparktrain.keras.layout import set_distribution
from sparktrain.keras.spread import is_spread
from sparktrain.keras.trainer import Trainer, TrainObjects
from tests.keras import exactness
from tests.keras.cases import CASES, FEATURES, SPEC, dense, sgd, shard_of

NAMES = ("weighted", "batchnorm", "early_stopping")
MESHES = ("data", "within", "across", "all")


def wide() -> keras.Model:
    kernel = {"kernel_regularizer": keras.regularizers.L2(0.05), "activity_regularizer": keras.regularizers.L1(0.02)}
    return keras.Sequential(
        [
            layers.Input((FEATURES,)),
            layers.Dense(8, name="wide", **kernel),
            layers.BatchNormalization(name="norm"),
            layers.Activation("tanh"),
            dense(),
        ]
    )


def parallel(devices: np.ndarray) -> distribution.ModelParallel:
    """Devices of shape (batch, model)."""
    mesh = distribution.DeviceMesh(devices.shape, ("batch", "model"), devices.flatten())
    layout = distribution.LayoutMap(mesh)
    layout["wide/kernel"] = (None, "model")
    layout["wide/bias"] = ("model",)
    layout["norm/.*"] = ("model",)
    return distribution.ModelParallel(layout_map=layout, batch_dim_name="batch")


def data(devices: list[str]) -> Any:
    return distribution.DataParallel(devices=devices)


def within(devices: list[str]) -> Any:
    """Each rank holds the model, half on each of its devices."""
    return parallel(np.array(devices).reshape(2, 2))


def across(devices: list[str]) -> Any:
    """Each half of the model is on both ranks."""
    return parallel(np.array(devices).reshape(2, 2).T)


def all_(devices: list[str]) -> Any:
    """One model on all devices."""
    return parallel(np.array(devices).reshape(1, 4))


def tame() -> dict[str, Any]:
    """A rate with which no loss explodes: that would leave nothing to compare."""
    return {"optimizer": sgd(0.1), "loss": "mse"}


def choose() -> None:
    """The cases, with a model that can be cut in four, and batches that two devices can't share evenly."""
    chosen = [dataclasses.replace(case, model=wide) for case in CASES if case.name in NAMES]
    exactness.CASES[:] = [
        dataclasses.replace(case, compiled=tame) if case.name == "early_stopping" else case for case in chosen
    ]
    exactness.SPEC = dataclasses.replace(SPEC, batch_size=3)


def plain(peers: Any, tensors: Any) -> dict[str, Any]:
    choose()
    return exactness.plain(peers, tensors)


def train(peers: Any, tensors: Any) -> dict[str, Any]:
    choose()
    return {
        mesh: exactness.train(peers, tensors, {"data": data, "within": within, "across": across, "all": all_}[mesh])
        for mesh in MESHES
    }


def features(peers: Any, tensors: Any) -> dict[str, Any]:
    """What a spread model can be asked for, and what it can't."""
    shared = Path(tempfile.gettempdir(), f"sparktrain-test-{os.getppid()}")
    shared.mkdir(exist_ok=True)
    layout = set_distribution(all_, peers.world_size)
    case = next(one for one in CASES if one.name == "mse")
    compiled = {"optimizer": sgd(), "loss": "mse"}

    def fit(callbacks: list[Any]) -> Trainer:
        keras.utils.set_random_seed(1)
        objects = archive.loads(archive.dumps(TrainObjects(wide(), compiled, callbacks)))
        shard = shard_of(case, (7, 5), peers.rank)
        trainer = Trainer(SPEC, objects, shard, peers, tensors, lambda event: None, layout)
        trainer.fit()
        return trainer

    paths = [shared / "{epoch}.keras", shared / "{epoch}.weights.h5"]
    savers = [
        keras.callbacks.ModelCheckpoint(str(path), save_weights_only=weights, save_freq="epoch")
        for weights, path in enumerate(paths)
    ]
    trainer = fit(savers)
    values = trainer.values()
    kernel = trainer._model.get_layer("wide").kernel
    found = {
        "spread": is_spread(kernel),
        "part": kernel.value.addressable_shards[0].data.shape,
        "moment": is_spread(trainer._model.optimizer.variables[2]),
        "optimizer": values["optimizer"],
    }
    try:
        fit([keras.callbacks.BackupAndRestore(str(shared / "backup"))])
    except ParamError as error:
        found["refused"] = str(error)
    keras.distribution.set_distribution(None)
    if peers.rank == 0:
        kept = keras.saving.load_model(shared / "2.keras")
        found["kept"] = archive.values_of(kept.variables), archive.values_of(kept.optimizer.variables)
        kept.load_weights(shared / "2.weights.h5")
        found["weights"] = archive.values_of(kept.variables)
    found["values"] = values["model"]
    for wrong in (lambda devices: None, lambda devices: distribution.DataParallel(devices=devices[:2])):
        try:
            set_distribution(wrong, peers.world_size)
        except ParamError as error:
            found.setdefault("wrong", []).append(str(error))
    return found
