"""Epoch values over all ranks: losses and metric functions as means by real rows, torchmetrics objects merged."""

from __future__ import annotations

import contextlib
import copy
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sparktrain.errors import ParamError
from sparktrain.torch.collective import Collective
from sparktrain.torch.loss import Link

MetricFunction = Callable[[Any, Any], Any]


def is_metric_object(metric: Any) -> bool:
    """Whether it accumulates by itself, as a torchmetrics ``Metric`` or ``MetricCollection`` does."""
    return all(callable(getattr(metric, name, None)) for name in ("update", "compute", "reset"))


class EpochMeans:
    """Sums of one pass over the data; one all-reduce at its end makes them global.

    Parameters
    ----------
    links : sequence of str or None
        One a loss: what makes probabilities of its outputs, where they are logits.
    metrics : mapping of str to callable
        ``metric(output, target)``, a mean over the batch; with several labels it gets lists. Or torchmetrics
        objects, which this pass updates in place: give it a copy of its own.
    """

    def __init__(self, links: Sequence[Link | None], metrics: Mapping[str, Any]) -> None:
        losses = len(links)
        self._links = list(links)
        self._functions = {name: metric for name, metric in metrics.items() if not is_metric_object(metric)}
        self._objects = {name: metric for name, metric in metrics.items() if is_metric_object(metric)}
        self._order = list(metrics)
        self._numerators = torch.zeros(losses, dtype=torch.float64)
        self._denominators = torch.zeros(losses, dtype=torch.float64)
        self._sums = torch.zeros(len(self._functions), dtype=torch.float64)
        self._rows = 0
        for metric in self._objects.values():
            metric.reset()

    def add_loss(self, numerators: Tensor, denominators: Tensor) -> None:
        """Add a batch's sums, each of shape (losses,)."""
        if self._numerators.device != numerators.device:  # the first batch on a GPU
            self._numerators = self._numerators.to(numerators.device)
            self._denominators = self._denominators.to(numerators.device)
        self._numerators += numerators
        self._denominators += denominators

    def add_metrics(self, outputs: Sequence[Tensor], targets: Sequence[Tensor], rows: int) -> None:
        """Evaluate the metrics on a batch of `rows` rows."""
        self._rows += rows
        if not self._order:
            return
        pair = (outputs[0], targets[0]) if len(outputs) == 1 else (list(outputs), list(targets))
        with torch.no_grad():
            for position, (name, function) in enumerate(self._functions.items()):
                with _named(name, outputs, targets):
                    value = torch.as_tensor(function(*pair)).detach()
                if value.numel() != 1:
                    raise ValueError(f"metric {name!r} must return one number a batch, got shape {tuple(value.shape)}")
                self._sums[position] += float(value) * rows
            for name, metric in self._objects.items():
                with _named(name, outputs, targets):
                    if of_classes(metric) and len(outputs) == 1:
                        metric.update(probabilities(outputs[0], self._links[0]), whole(targets[0]))
                    else:
                        metric.update(*pair)

    def local_loss(self, weights: Sequence[float]) -> float:
        """This rank's loss so far, for live progress."""
        return _weighted(self._numerators.cpu(), self._denominators.cpu(), weights)

    @property
    def local_rows(self) -> int:
        return self._rows

    def state(self) -> dict[str, Any]:
        """What has been added up, as tensors and numbers."""
        return {
            "numerators": self._numerators,
            "denominators": self._denominators,
            "sums": self._sums,
            "rows": self._rows,
            "objects": {name: [_own_state(one) for one in _stateful(it)] for name, it in self._objects.items()},
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        device = self._numerators.device
        self._numerators, self._denominators = state["numerators"].to(device), state["denominators"].to(device)
        self._sums, self._rows = state["sums"], state["rows"]
        for name, metric in self._objects.items():
            for one, (count, values) in zip(_stateful(metric), state["objects"][name], strict=True):
                for key, value in values.items():
                    own = getattr(one, key)
                    where = own.device if isinstance(own, Tensor) else one.device
                    moved = [part.to(where) for part in value] if isinstance(value, list) else value.to(where)
                    setattr(one, key, moved)
                one._update_count, one._computed = count, None

    def reduce(self, collective: Collective, weights: Sequence[float], prefix: str = "") -> dict[str, float]:
        """The global values by name, ``loss`` first; every rank calls it, also one that saw no rows."""
        rows = torch.tensor([self._rows], dtype=torch.float64)
        flat = torch.cat([self._numerators.cpu(), self._denominators.cpu(), self._sums, rows])
        collective.sum(flat)
        losses, metrics = len(self._numerators), len(self._functions)
        numerators, denominators, sums, total = torch.split(flat, [losses, losses, metrics, 1])
        found: dict[str, dict[str, float]] = {}
        for name, value in zip(self._functions, sums.tolist(), strict=True):
            found[name] = {name: value / float(total) if total else float("nan")}
        for name, metric in self._objects.items():
            merged = _merged(metric, self._rows > 0, collective)
            with _named(name):
                found[name] = _values(name, merged)
        values = {f"{prefix}loss": _weighted(numerators, denominators, weights)}
        for name in self._order:
            values |= {f"{prefix}{key}": value for key, value in found[name].items()}
        return values


@contextlib.contextmanager
def _named(metric: str, outputs: Sequence[Tensor] = (), targets: Sequence[Tensor] = ()) -> Iterator[None]:
    """An error from inside a metric also says which one, and what it was given."""
    try:
        yield
    except Exception as error:
        pairs = zip(outputs, targets, strict=True)
        shapes = ", ".join(f"{tuple(output.shape)} and {tuple(target.shape)}" for output, target in pairs)
        error.add_note(f"in metric {metric!r}" + (f", given output and target of shape {shapes}" if shapes else ""))
        raise


def _weighted(numerators: Tensor, denominators: Tensor, weights: Sequence[float]) -> float:
    means = numerators / denominators
    return float((means * torch.tensor(weights, dtype=torch.float64)).sum())


# torchmetrics objects. Their own synchronisation can hang: a rank that saw no rows gathers an empty state of another
# shape and dtype, or none. So the ranks exchange whole objects, those without rows an empty message, and every rank
# reduces the states as the objects declare it (`add_state(dist_reduce_fx=…)`).


def of_classes(metric: Any) -> bool:
    """Whether it is one of torchmetrics' classification metrics, or a collection of them."""
    parts = metric.values() if hasattr(metric, "keys") else [metric]
    return all("classification" in type(part).__module__ for part in parts)


def probabilities(output: Tensor, link: Link | None) -> Tensor:
    """Classification metrics guess batch by batch whether they are given logits: they are given probabilities."""
    if link is None:
        return output
    return torch.sigmoid(output) if link == "sigmoid" else torch.softmax(output, dim=1)


def whole(target: Tensor) -> Tensor:
    """Binary losses take float labels, classification metrics whole numbers, which are the same in both."""
    if target.is_floating_point() and bool((target == target.long()).all()):
        return target.long()
    return target


def _merged(metric: Any, updated: bool, collective: Collective) -> Any:
    """The metric over all ranks' rows, or None where nobody had any."""
    mine = pickle.dumps(copy.deepcopy(metric).cpu()) if updated else b""
    ranks = [pickle.loads(data) for data in collective.gather_bytes(mine) if data]
    if not ranks:
        return None
    first = ranks[0]
    for parts in zip(*[_stateful(one) for one in ranks], strict=True):
        _merge_states(parts)
    return first


def _stateful(metric: nn.Module) -> list[Any]:
    """The metric and those inside it (collections, wrappers) that hold states; some wrappers show their inner one's."""
    found: dict[int, Any] = {}
    for module in reversed(list(metric.modules())):  # from the inside
        reductions = getattr(module, "_reductions", None)
        if reductions is not None:
            found.setdefault(id(reductions), module)
    return list(found.values())


def _own_state(metric: Any) -> list[Any]:
    """How often it was updated, and its states by name."""
    return [metric._update_count, {name: getattr(metric, name) for name in metric._reductions}]


def _merge_states(ranks: Sequence[Any]) -> None:
    """Reduce one metric's states over ranks into the first, as ``Metric.sync`` does with gathered ones."""
    first, used = ranks[0], [one for one in ranks if one.update_called]
    first.distributed_available_fn = lambda: False
    for name, reduce_states in first._reductions.items() if used else ():
        states = [getattr(one, name) for one in used]
        if isinstance(states[0], list):
            gathered: Any = [tensor for state in states for tensor in state]
            reduced = reduce_states(gathered) if reduce_states is not None and gathered else gathered
            reduced = [reduced] if isinstance(reduced, Tensor) else reduced
        else:
            gathered = torch.stack(states)
            reduced = reduce_states(gathered) if reduce_states is not None else gathered
        setattr(first, name, reduced)
    if used:
        first._update_count = sum(one._update_count for one in used)
        first._computed = None


def _values(name: str, metric: Any) -> dict[str, float]:
    """What a metric computes, as numbers by name; a collection's as ``name_key``.

    Raises
    ------
    ParamError
        For a metric that gives more than one number.
    """
    if metric is None:
        return {name: float("nan")}
    computed = metric.compute()
    parts = (
        {f"{name}_{key}": part for key, part in computed.items()} if isinstance(computed, dict) else {name: computed}
    )
    for key, part in parts.items():
        shape = tuple(part.shape) if isinstance(part, Tensor) else None
        if shape is None or part.numel() != 1:
            what = type(part).__name__ if shape is None else f"a tensor of shape {shape}"
            raise ParamError(
                f"metric {key!r} computes {what}, but history holds "
                "one number a metric: let it average (average='macro'), or use a callable"
            )
    return {key: float(part) for key, part in parts.items()}
