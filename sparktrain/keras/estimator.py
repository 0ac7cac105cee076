"""`KerasEstimator`: a Keras model trained by a gang over a DataFrame."""

from __future__ import annotations

import os
import pickle
import warnings
from collections.abc import Mapping
from typing import Any

import keras
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from sparktrain import persistence
from sparktrain.errors import ParamError
from sparktrain.estimator import GangEstimator, HasTraining, Payload
from sparktrain.gang.launch import GangOutcome
from sparktrain.keras import archive, files
from sparktrain.keras.checks import check_backend, check_callbacks, check_compiled
from sparktrain.keras.held import KerasValue
from sparktrain.keras.inputs import check_inputs, join_scalars, shaped
from sparktrain.keras.model import HasKerasOutputs, KerasModel, keras_model
from sparktrain.keras.params import HasKerasTraining
from sparktrain.keras.signature import outputs_kind
from sparktrain.keras.spec import TRAINERS, TrainSpec
from sparktrain.keras.trainer import TrainObjects
from sparktrain.model import HasColumns
from sparktrain.params import GangParam
from sparktrain.shards.columns import ColumnPlan, ColumnPlanner, LabelKind
from sparktrain.store.store import Store, new_run_id


class KerasEstimator(
    GangEstimator[KerasModel], HasTraining, HasColumns, HasKerasOutputs, HasKerasTraining, persistence.Saveable
):
    """Trains a Keras 3 model on a DataFrame by `Model.fit`, in a gang of processes on Spark's executors.

    One step of N ranks equals one step of one process on the N ranks' rows together, on the TensorFlow, JAX and
    PyTorch backends alike. Not exact: dropout, losses that couple the rows of a batch, and on TensorFlow and PyTorch
    BatchNormalization without ``sync_batchnorm`` (each rank's own moments in a step, moving averages averaged by rows
    after each epoch).

    Examples
    --------
    >>> net = keras.Sequential([keras.layers.Dense(64, "relu"), keras.layers.Dense(1)])
    >>> estimator = KerasEstimator(
    ...     model=net, optimizer="adam", loss="mse", feature_cols=["features"], label_cols=["y"],
    ...     num_proc=2, batch_size=256, epochs=3, callbacks=[keras.callbacks.EarlyStopping("loss")],
    ... )
    >>> model = estimator.fit(train)
    >>> model.transform(test)
    """

    weights_file = ""
    _holder = KerasValue
    _refused = {  # noqa: RUF012
        "backward_passes_per_step": "Keras's optimizers do that, on every backend: give the optimizer "
        "gradient_accumulation_steps=",
    }
    _admits = staticmethod(files.admits)

    model = GangParam("model", "The keras.Model to train; it is copied, not changed.", keras_model, by_value=True)

    @property
    def trainer(self) -> str:  # type: ignore[override]
        """``module:function`` that the workers run: one a backend."""
        return TRAINERS[self._backend()]

    def _backend(self) -> str:
        return str(self._value(self.kerasBackend) or keras.backend.backend())

    def _shards(self, dataset: DataFrame, plan: ColumnPlan, num_proc: int) -> DataFrame:
        if self._value(self.shuffle) != "global":
            return super()._shards(dataset, plan, num_proc)
        return plan.shards(dataset, num_proc, seed=self._value(self.seed))

    def _label_columns(self) -> tuple[list[str], tuple[str, ...] | None]:
        """The label columns, and the outputs that they are for where these have names."""
        given = self._value(self.labelCols)
        if not isinstance(given, Mapping):
            known = getattr(self._value(self.model), "output_names", None)
            if isinstance(getattr(self._value(self.model), "output", None), Mapping) and known:
                return given, tuple(known)
            return given, None
        known = list(getattr(self._value(self.model), "output_names", None) or given)
        if set(known) != set(given):
            raise ParamError(f"label_cols names the outputs {sorted(given)}, but the model's are {known}")
        by_name = isinstance(getattr(self._value(self.model), "output", {}), Mapping)
        return [given[name] for name in known], tuple(known) if by_name else None

    def _plan(self, schema: StructType) -> ColumnPlan:
        if self._value(self.shuffle) == "global" and self._value(self.partitioned):
            raise ParamError("shuffle='global' deals rows to ranks anew, and partitioned=True leaves them: choose one")
        net = self._value(self.model)
        planner = ColumnPlanner(schema)
        tensors = planner.inputs(
            join_scalars(net, self._value(self.featureCols), schema),
            self._value(self.featureDtypes),
            self._value(self.featureShapes),
            self._value(self.pad),
        )
        inputs = [spec for spec in tensors if spec.role == "input"]
        transforms = self._value(self.transformBatch) is not None
        check_inputs(net, inputs, transforms=transforms)
        if not transforms:
            known = iter(shaped(net, inputs))
            tensors = [next(known) if spec.role == "input" else spec for spec in tensors]
        labels, _ = self._label_columns()
        leaked = sorted({column.name for spec in inputs for column in spec.columns} & set(labels))
        if leaked:
            warnings.warn(f"label_cols {leaked} are also in feature_cols: the model is given its answer", stacklevel=4)
        kinds = label_kinds(self._compiled()["loss"], len(labels), self._label_columns()[1])
        for name, kind in zip(labels, kinds, strict=True):
            tensors.append(planner.label(name, kind, self._value(self.labelDtype)))
        weight, validation = self._value(self.sampleWeightCol), self._value(self.validation)
        if weight is not None:
            tensors.append(planner.weight(weight))
        if isinstance(validation, str):
            tensors.append(planner.validation(validation))
        self._check_outputs(labels)
        return planner.plan(tensors)

    def _check_outputs(self, labels: list[str]) -> None:
        kind, names = self._value(self.predictionType), self._value(self.outputCols)
        outputs = getattr(self._value(self.model), "outputs", None)
        if outputs and len(outputs) != len(labels):
            raise ParamError(f"label_cols names {len(labels)} columns, but the model has {len(outputs)} outputs")
        if kind != "raw" and len(labels) > 1:
            raise ParamError(f"prediction_type={kind!r} takes one label, but label_cols names {len(labels)}; use 'raw'")
        if names is not None and len(names) != len(labels):
            raise ParamError(f"output_cols names {len(names)} columns for {len(labels)} label_cols; give one for each")

    def _compiled(self) -> dict[str, Any]:
        """`Model.compile`'s keywords: the compiled model's own, and over them what this estimator was given."""
        net = self._value(self.model)
        own = archive.compiled_with(net) or {}
        given = {
            "optimizer": self._value(self.optimizer),
            "loss": self._value(self.loss),
            "loss_weights": self._value(self.lossWeights),
            "metrics": self._value(self.metrics),
            "weighted_metrics": self._value(self.weightedMetrics),
            "steps_per_execution": self._value(self.stepsPerExecution),
            "jit_compile": self._value(self.jitCompile),
            "run_eagerly": self._value(self.runEagerly),
        }
        if own and given["jit_compile"] is None:
            own.pop("jit_compile", None)  # settled by the driver's backend
        compiled = {"optimizer": "rmsprop", "loss": None, **own}
        return compiled | {name: value for name, value in given.items() if value is not None}

    def _payload(self, plan: ColumnPlan, schema: StructType) -> Payload:
        compiled = self._compiled()
        net, validation = self._value(self.model), self._value(self.validation)
        check_compiled(net, compiled, self._backend(), self._value(self.numProc), self._value(self.customObjects))
        check_backend(self._backend(), self._value(self.backend), self._value(self.gradientCompression))
        callbacks = self._value(self.callbacks)
        check_callbacks(callbacks, compiled, validates=validation is not None)
        spec = TrainSpec(
            batch_size=self._value(self.batchSize),
            epochs=self._value(self.epochs),
            seed=self._value(self.seed),
            shuffle=self._value(self.shuffle) is not False,
            validation=validation if isinstance(validation, float) else None,
            validation_batch_size=self._value(self.validationBatchSize),
            validation_freq=self._value(self.validationFreq),
            sync_batchnorm=self._value(self.syncBatchnorm),
            output_names=self._label_columns()[1],
            folder=self._folder(),
            gradient_compression=self._value(self.gradientCompression),
            dtype_policy=keras.dtype_policies.serialize(keras.config.dtype_policy()),
        )
        objects = TrainObjects(
            model=net,
            compiled=compiled,
            callbacks=callbacks,
            class_weight=self._value(self.classWeight),
            transform_batch=self._value(self.transformBatch),
            custom_objects=self._value(self.customObjects),
        )
        packed = archive.dumps(objects, custom_objects=self._value(self.customObjects))
        small = {"spec": spec, "distribution": self._distribute()}
        return Payload(small, "objects", packed, len(packed), 4 * len(packed))

    def _folder(self) -> str:
        """URL of the directory from which the callbacks' paths go."""
        store, run_id = self._value(self.store), self._value(self.runId)
        if store is None:
            if run_id is not None:
                raise ParamError(f"run_id={run_id!r} names a directory in a store, and there is none; give store=")
            return Store(os.getcwd()).url
        return Store(store).get_run_path(run_id or new_run_id())

    def _distribute(self) -> bytes | None:
        """The function that gives the distribution: it runs before the model and all else is made."""
        given = self._value(self.distribution)
        if given is not None and self._backend() != "jax":
            raise ParamError(f"distribution: Keras has it on JAX alone, and keras_backend is {self._backend()!r}")
        return None if given is None else archive.dumps(given)

    def _create_model(self, outcome: GangOutcome, plan: ColumnPlan) -> KerasModel:
        untrained = self._value(self.model), self._compiled()
        net, compiled = archive.loads(archive.dumps(untrained, custom_objects=self._value(self.customObjects)))
        with open(outcome.result.path, "rb") as file:
            values = pickle.load(file)
        if not net.built:
            with keras.saving.custom_object_scope(self._value(self.customObjects)):
                net.build_from_config(values["build_config"])
            net.built = True
        archive.assign(net.variables, values["model"], "model")
        keras.Model.compile(net, **compiled)
        if values["optimizer"] is not None and net.optimizer is not None:
            vars(net.optimizer).pop("sparktrain_values", None)
            net.optimizer.build(net.trainable_variables)
            archive.assign(net.optimizer.variables, values["optimizer"], "optimizer")
        info = outcome.infos[0]
        columns, names = self._label_columns()
        model = self._copyValues(KerasModel())
        model.setParams(model=net)  # after the copy, which took the untrained model along
        if self._value(self.store) is not None:
            model.setParams(run_id=info["folder"].rpartition("/")[2])
        return model._fitted(
            history=info["history"],
            input_shapes=tuple(tuple(shape) for shape in info["inputs"]),
            outputs=tuple((dtype, tuple(shape)) for dtype, shape in info["outputs"]),
            labels=tuple(columns),
            output_keys=names,
            kind=outputs_kind(net, compiled["loss"]),
        )

    def _saved_objects(self) -> persistence.ToSave:
        values = {
            param.name: self.getOrDefault(param)
            for param in self.params
            if isinstance(param, GangParam) and param.by_value and self.isSet(param)
        }
        structure = archive.dumps(values, compiled=True, custom_objects=self._value(self.customObjects))
        return persistence.ToSave(structure, persistence.nothing, {})

    def _restore_objects(self, saved: persistence.Saved, unpickler: persistence.Unpickler) -> None:
        for name, value in files.restored(saved.structure, unpickler).items():
            self._set(**{name: value})


def label_kinds(loss: Any, labels: int, names: tuple[str, ...] | None) -> list[LabelKind]:
    """What each label's loss takes."""
    if isinstance(loss, Mapping):
        losses = [loss.get(name) for name in (names or loss)]
    else:
        losses = list(loss) if isinstance(loss, (list, tuple)) else [loss] * labels
    if len(losses) != labels:
        raise ParamError(f"loss: {len(losses)} losses for {labels} label_cols; give one loss, or one for each")
    return [_label_kind(one) for one in losses]


def _label_kind(loss: Any) -> LabelKind:
    name = loss if isinstance(loss, str) else getattr(loss, "__name__", type(loss).__name__)
    name = name.lower().replace("_", "")
    if name.startswith("sparse"):
        return "class"
    module = "keras." if isinstance(loss, str) else getattr(loss, "__module__", None) or type(loss).__module__
    return "float" if module.startswith("keras.") and name not in ("crossentropy", "ce") else "as_is"
