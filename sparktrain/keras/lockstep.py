"""Ranks in lockstep under `Model.fit`, on the TensorFlow and PyTorch backends.

Each rank runs Keras's own loop over its own rows. Where the loop computes something from all rows of a step or an
epoch, the ranks join: gradients on their way into an optimizer, metrics on their way into the logs. A rank whose rows
are used up makes the same exchanges with zeros, and touches no metric and no moving average.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import keras
import numpy as np

from sparktrain.keras.losses import Rows
from sparktrain.keras.overrides import Overrides
from sparktrain.keras.peers import Peers

Step = Callable[[Any], Any]
Phase = Literal["train", "test"]


class Tensors(Protocol):
    """What differs between the two backends."""

    def sum(self, vector: Any, before: Callable[[Any], None], after: Callable[[Any], None]) -> Any:
        """The sum of a vector of floats over all ranks, without gradient.

        `before` and `after` see its values, and may set some, when it is computed.
        """

    def differentiable_sum(self, vector: Any, exchange: Callable[[Any], Any]) -> Any:
        """`exchange(vector)`, whose gradient is that of all ranks."""

    def rows(self, data: Any) -> Any:
        """Of the first input: a scalar tensor, float32."""

    def choose(self, rows: Any, work: Callable[[], Any], idle: Callable[[], Any]) -> Any:
        """`work()` where there are rows, else `idle()`; in a graph both are traced, `work` first."""

    def blank(self, logs: Any) -> Any:
        """What a step without rows gives in place of such logs."""

    def dense(self, gradient: Any) -> Any:
        """A gradient as a plain tensor."""


@dataclass(frozen=True)
class _Sum:
    """An exchange of a vector of this length; `twice`: its gradient is exchanged as well."""

    length: int


@dataclass(frozen=True)
class _Apply:
    """A call of an optimizer: for which variables, and which of them have a gradient."""

    apply: Callable[..., Any]
    variables: tuple[Any, ...]
    present: tuple[bool, ...]


class Lockstep:
    """What ranks do together in the steps of a compiled model.

    Parameters
    ----------
    model : Model
        Built, with its metrics and losses.
    peers : Peers
    tensors : Tensors
    rows : Rows
        Where losses find how many rows a step has.
    idles : bool
        Whether this rank has no rows in some step.
    last_rows : mapping of str to int
        How many it has in the last step of an epoch (``"train"``) and of an evaluation (``"test"``).
    compresses : bool
        Whether gradients travel as float16.

    Attributes
    ----------
    phase : str
        Which of the two is going on.
    wishes_to_stop : bool
        This rank's callbacks have asked to end training.
    stops : bool
        Some rank's have: known on all ranks after the same step.
    """

    def __init__(
        self,
        model: keras.Model,
        peers: Peers,
        tensors: Tensors,
        rows: Rows,
        *,
        idles: bool,
        last_rows: Mapping[Phase, int],
        compresses: bool = False,
    ) -> None:
        self._model, self._peers, self._tensors, self._rows, self.idles = model, peers, tensors, rows, idles
        self._last_rows, self._compresses = last_rows, compresses
        self._records: dict[Phase, list[_Sum | _Apply]] = {"train": [], "test": []}
        self._record: list[_Sum | _Apply] | None = None
        self._logs: dict[Phase, Any] = {}
        self._rehearses = False
        self.phase: Phase = "train"
        self.wishes_to_stop = False
        self.stops = False

    def install(self, overrides: Overrides) -> None:
        """From here on the model trains and evaluates with its peers."""
        model, put = self._model, overrides.put
        overrides.callback(model.make_train_function, force=True)
        for optimizer in optimizers_of(model):
            put(optimizer, "apply", self._joined_apply(optimizer.apply))
        compiled = model._compile_loss
        for tracker in compiled.metrics if compiled is not None else ():  # of each output's loss
            put(tracker, "update_state", self._by_rows(tracker.update_state))
        put(model, "train_step", self._joined("train", model.train_step))
        put(model, "test_step", self._joined("test", model.test_step))
        put(model, "_get_metrics_result_or_logs", self._joined_results(model._get_metrics_result_or_logs))

    def _by_rows(self, update: Callable[..., Any]) -> Callable[..., Any]:
        """Count rows: on TensorFlow, Keras counts batches, whatever their size."""
        return lambda values, sample_weight=None: update(values, sample_weight=self._rows.count)

    def add_up(self, vector: Any) -> Any:
        """The sum over all ranks inside a step; no gradient passes."""
        if self._record is not None:
            self._record.append(_Sum(int(vector.shape[0])))
        return vector if self._rehearses else self._tensors.sum(vector, _nothing, _nothing)

    def rehearse(self, phase: Phase, step: Callable[[], Any]) -> None:
        """Learn from a step on made-up rows what the others exchange in one; nothing is exchanged, nothing changes."""
        model = self._model
        variables = [*model.variables, *model.metrics_variables]
        values = [keras.ops.convert_to_numpy(one) for one in variables]
        self._rehearses = True
        try:
            self._logs[phase] = step()
        finally:
            self._rehearses = False
            for variable, value in zip(variables, values, strict=True):
                variable.assign(value)

    def add_up_differentiably(self, vector: Any) -> Any:
        """As `add_up`, with the gradient of all ranks."""
        return self._tensors.differentiable_sum(vector, self.add_up)

    def _joined(self, phase: Phase, step: Step) -> Step:
        def joined(data: Any) -> Any:
            rows = self._tensors.rows(data)

            def work() -> Any:
                self._rows.count, self._record = rows, []
                try:
                    self._logs[phase] = step(data)
                finally:
                    self._records[phase], self._record, self._rows.count = self._record, None, None
                return self._logs[phase]

            if not self.idles:
                return work()
            return self._tensors.choose(rows, work, lambda: self._idle(phase, rows))

        return joined

    def _idle(self, phase: Phase, rows: Any) -> Any:
        """A step without rows: what the others exchange, with zeros."""
        for entry in self._records[phase]:
            if isinstance(entry, _Sum):
                self._tensors.sum(keras.ops.zeros((entry.length,)), _nothing, _nothing)
            else:
                zeros = [
                    keras.ops.zeros(variable.shape, variable.dtype) if present else None
                    for variable, present in zip(entry.variables, entry.present, strict=True)
                ]
                self._rows.count = rows
                entry.apply(zeros, list(entry.variables))
                self._rows.count = None
        return self._tensors.blank(self._logs[phase])

    def _joined_apply(self, apply: Callable[..., Any]) -> Callable[..., Any]:
        def joined(grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> Any:
            owner = apply.__self__  # type: ignore[attr-defined]
            variables = list(owner._trainable_variables if trainable_variables is None else trainable_variables)
            grads = list(grads)
            if self._record is not None:
                self._record.append(_Apply(joined, tuple(variables), tuple(one is not None for one in grads)))
            if self._rehearses:
                return None
            return apply(self._joined_gradients(grads, variables), variables)

        return joined

    def _joined_gradients(self, grads: list[Any], variables: list[Any]) -> list[Any]:
        """Each gradient as the mean over all ranks, weighted by rows; None stays None."""
        ops = keras.ops
        present = [self._tensors.dense(one) for one in grads if one is not None]
        rows = ops.reshape(self._rows.count, (1,))
        parts = [ops.reshape(ops.cast(one, "float32"), (-1,)) * rows for one in present]
        own = [rows, ops.zeros((1,))]
        if self._compresses:  # not the rows; and divided first, for float16 ends at 65,504
            count = self._tensors.sum(ops.concatenate(own), self._tell, self._hear)[-2]
            shares = ops.cast(ops.concatenate([*parts, ops.zeros((1,))]) / count, "float16")
            total, count = ops.cast(self._tensors.sum(shares, _nothing, _nothing), "float32"), 1
        else:
            total = self._tensors.sum(ops.concatenate([*parts, *own]), self._tell, self._hear)
            count = total[-2]
        joined, start = [], 0
        shapes = [tuple(variable.shape) for variable, one in zip(variables, grads, strict=True) if one is not None]
        for one, shape in zip(present, shapes, strict=True):
            size = math.prod(shape)
            joined.append(ops.cast(ops.reshape(total[start : start + size] / count, shape), one.dtype))
            start += size
        rest = iter(joined)
        return [None if one is None else next(rest) for one in grads]

    def _tell(self, values: Any) -> None:
        values[-1] = float(self.wishes_to_stop)

    def _hear(self, values: Any) -> None:
        self.stops = bool(values[-1] > 0)

    def _joined_results(self, results: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Metrics at the end of an epoch or an evaluation, from the states of all ranks added up."""

        def joined(logs: Any) -> Any:
            variables = self._model.metrics_variables
            own = [keras.ops.convert_to_numpy(one) for one in variables]
            if variables:
                flat = np.concatenate([np.asarray(one, np.float64).reshape(-1) for one in own])
                sums = self._peers.sum(flat)
                start = 0
                for variable, value in zip(variables, own, strict=True):
                    joint = sums[start : start + value.size].reshape(value.shape)
                    start += value.size
                    mean = getattr(variable, "aggregation", "sum") == "mean"
                    variable.assign((joint / self._peers.world_size if mean else joint).astype(value.dtype))
            # as numbers: a metric may give its very variable; flat before as well, so that Keras knows metrics for such
            found = plain_logs(results(plain_logs(logs)))
            for variable, value in zip(variables, own, strict=True):
                variable.assign(value)
            return found if self._is_metrics(found) else self._mean_logs(found)

        return joined

    def _is_metrics(self, logs: Any) -> bool:
        return set(logs) == set(self._model.get_metrics_result())

    def _mean_logs(self, logs: Any) -> Any:
        """Values that a custom step gives for its last batch: their mean over the ranks, weighted by its rows."""
        names, rows = sorted(logs), self._last_rows[self.phase]
        values = [logs[name] if rows else np.zeros_like(logs[name]) for name in names]
        shapes = [np.shape(value) for value in values]
        flat = np.concatenate([np.ones(1), *(np.reshape(value, -1) for value in values)]).astype(np.float64)
        count, *sums = np.split(self._peers.sum(flat * rows), np.cumsum([1, *(math.prod(one) for one in shapes)])[:-1])
        means = [one.reshape(shape) / count[0] for one, shape in zip(sums, shapes, strict=True)]
        return {name: float(one) if one.ndim == 0 else one for name, one in zip(names, means, strict=True)}


def plain_logs(logs: Mapping[str, Any]) -> dict[str, Any]:
    """Logs as Keras gives them to callbacks: numbers, arrays of metrics that have one value a class, nothing nested."""
    found: dict[str, Any] = {}
    for name, value in logs.items():
        if isinstance(value, Mapping):
            found |= plain_logs(value)
        else:
            array = np.array(keras.ops.convert_to_numpy(value))
            found[name] = float(array.item()) if array.size == 1 else array
    return found


def optimizers_of(model: keras.Model) -> list[keras.optimizers.Optimizer]:
    """Those of a model: the compiled one, and what else its class holds (a GAN has two)."""
    own = [value for value in vars(model).values() if isinstance(value, keras.optimizers.Optimizer)]
    compiled = [model.optimizer] if isinstance(getattr(model, "optimizer", None), keras.optimizers.Optimizer) else []
    return list({id(one): one for one in [*compiled, *own]}.values())


def _nothing(values: Any) -> None:
    return
