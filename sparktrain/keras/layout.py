"""How the devices of a gang share a model and its rows, on the JAX backend: `keras.distribution`.

Each rank brings rows of its own, whatever the distribution: they are laid out over all devices, and each step moves
them along the axes of the mesh that hold parts of the model. So ranks that share one copy of a model still train on
the rows of all their shards, and a step's global batch is the one that data parallelism has.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
from keras import tree

from sparktrain.errors import ParamError
from sparktrain.keras.overrides import Overrides

Distribute = Callable[[list[str]], keras.distribution.DataParallel | keras.distribution.ModelParallel]
"""Takes the devices of all ranks, as `keras.distribution.list_devices` names them."""


def set_distribution(given: Distribute | None, world_size: int) -> Layout | None:
    """Make Keras lay out over the gang's devices all that it makes from now on.

    Parameters
    ----------
    given : callable or None
        None: `keras.distribution.DataParallel`.
    world_size : int

    Returns
    -------
    Layout or None
        None: one rank that was told no distribution.

    Raises
    ------
    ParamError
        Where `given` gives something else, or leaves devices out.
    """
    if given is None and world_size == 1:
        return None
    devices = keras.distribution.list_devices()
    if given is None:
        distribution = keras.distribution.DataParallel(devices=devices, auto_shard_dataset=False)
    else:
        distribution = given(list(devices))
        _check(distribution, devices)
        distribution.auto_shard_dataset = False  # the shards are the ranks' own
    layout = Layout(distribution, distribution.get_data_layout)
    distribution.get_data_layout = lambda shape: _Rows(layout.over_all_devices())
    keras.distribution.set_distribution(distribution)
    return layout


def _check(distribution: Any, devices: list[str]) -> None:
    kinds = (keras.distribution.DataParallel, keras.distribution.ModelParallel)
    if not isinstance(distribution, kinds):
        raise ParamError(
            f"distribution: the function must return a keras.distribution.ModelParallel or DataParallel, "
            f"got {type(distribution).__name__}"
        )
    used = sorted(str(one) for one in distribution.device_mesh.devices.flatten())
    if used != sorted(devices):
        raise ParamError(f"distribution: its device_mesh has the devices {used}; it must have all of {sorted(devices)}")


@dataclass(frozen=True)
class _Rows:
    """What Keras asks a distribution for."""

    backend_layout: Any


@dataclass(frozen=True)
class Layout:
    """The distribution of a fit.

    Parameters
    ----------
    distribution : Distribution
    data_layout : callable
        Where the distribution itself lays rows, by the shape of an array.
    """

    distribution: Any
    data_layout: Callable[[tuple[int, ...]], Any]

    @property
    def local_devices(self) -> int:
        """Of this rank: a step takes a multiple of as many rows from it."""
        import jax

        return int(jax.local_device_count())

    def over_all_devices(self) -> Any:
        """Rows split over all axes of the mesh, as the ranks bring them."""
        import jax

        spec: Any = jax.sharding.PartitionSpec
        mesh = self.distribution.device_mesh.backend_mesh
        return jax.sharding.NamedSharding(mesh, spec(tuple(mesh.axis_names)))

    def moved(self, data: Any) -> Any:
        """Inside a step: rows that came `over_all_devices`, where the distribution wants them."""
        import jax

        constrain: Any = jax.lax.with_sharding_constraint
        return tree.map_structure(lambda one: constrain(one, self.data_layout(one.shape).backend_layout), data)

    def install(self, model: keras.Model, overrides: Overrides) -> None:
        """From here on each step of a built model moves its rows first."""
        for name in ("train_step", "test_step") if self.moves else ():
            overrides.put(model, name, self._after_move(getattr(model, name)))

    def _after_move(self, step: Callable[..., Any]) -> Callable[..., Any]:
        return lambda state, data: step(state, self.moved(data))

    @property
    def moves(self) -> bool:
        """Whether some devices hold parts of one copy of the model."""
        return bool(self.distribution.device_mesh.devices.size > self.distribution.num_model_replicas)
