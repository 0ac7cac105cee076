"""Checkpoints of a PyTorch fit: what a rank writes while training goes on, and where it starts from again.

At an epoch's end all ranks hold the same, and rank 0 writes it. Within an epoch each rank adds what is its own: its
generators, the sums of its losses and metrics, BatchNorm's moving averages.
"""

from __future__ import annotations

import io
import json
import logging
import pickle
import time
from collections.abc import Mapping
from typing import IO, Any

import torch

from sparktrain.errors import GangError, ParamError
from sparktrain.store.checkpoints import Background, Checkpoints, CheckpointSpec, DamagedCheckpoint, Facts, Position
from sparktrain.store.run import TakenOver, check_claim
from sparktrain.torch.collective import Collective
from sparktrain.torch.state import State

logger = logging.getLogger(__name__)


class Saver:
    """Writes a rank's part of each checkpoint, when one is due.

    Parameters
    ----------
    spec : CheckpointSpec
    collective : Collective
    facts : dict
        What must be the same for a checkpoint within an epoch to be of use.

    Attributes
    ----------
    warnings : list of str
        For the driver.
    written : int
        Parts of checkpoints that this rank has written.
    stalled_s, writing_s : float
        How long training has waited for that in all, and how long it took in the background.
    rows_differ : bool
        Whether the rows are others than those of the checkpoint that the fit goes on from.
    """

    def __init__(self, spec: CheckpointSpec, collective: Collective, facts: Facts) -> None:
        self._spec, self._collective, self._facts = spec, collective, facts
        self.warnings: list[str] = []
        self.rows_differ = False
        self._store = Checkpoints(spec.run_url)
        self._background, self._snapshot = Background(), Snapshot()
        self.written, self.stalled_s, self.writing_s = 0, 0.0, 0.0
        self._written_at = time.monotonic()
        self._told: set[str] = set()
        self._best: tuple[float, Position] | None = None

    def is_due_within(self, steps_done: int) -> bool:
        """Whether to write after a step; all ranks find the same. `steps_done` counts from the fit's beginning."""
        by_steps = self._spec.every_n_steps is not None and steps_done % self._spec.every_n_steps == 0
        minutes = self._spec.every_n_minutes
        if minutes is None:
            return by_steps
        passed = time.monotonic() - self._written_at >= 60 * minutes
        return any(self._collective.gather(int(passed and self._collective.rank == 0))) or by_steps

    def is_due_after(self, epoch: int, *, last: bool) -> bool:
        """Whether to write after so many epochs."""
        return last or epoch % self._spec.every_n_epochs == 0

    def save(self, position: Position, state: State, *, alone: bool, history: list[dict[str, float]]) -> None:
        """Begin to write; what of `state` is written is what it holds now.

        Parameters
        ----------
        position : Position
        state : dict
        alone : bool
            Rank 0 writes, for all.
        history : list of dict
        """
        rank, ranks = self._collective.rank, 1 if alone else self._collective.world_size
        self._written_at = time.monotonic()
        self._note_best(position, history)
        if rank >= ranks:
            return
        began = time.perf_counter()
        self.finish()  # before another begins: its trouble is then told
        kept = self._snapshot.take(state)
        self.stalled_s += time.perf_counter() - began

        def write() -> None:
            began = time.perf_counter()

            def save(file: IO[bytes]) -> None:
                torch.save(kept, file)

            check_claim(self._spec.run_url, self._spec.attempt)
            self._store.write(position, rank, ranks, self._spec.attempt, save, self._facts)
            if rank == 0:
                self._store.keep(self._spec.keep_last, None if self._best is None else self._best[1])
            self.written += 1
            self.writing_s += time.perf_counter() - began

        self._background.do(write)

    def finish(self) -> None:
        """Wait for what is being written."""
        self._background.finish()
        trouble = self._background.trouble
        if isinstance(trouble, TakenOver):
            raise GangError(str(trouble))
        if trouble is not None and str(trouble) not in self._told:
            self._told.add(str(trouble))
            self._warn(f"a checkpoint could not be written: {type(trouble).__name__}: {trouble}")

    def _warn(self, text: str) -> None:
        logger.warning("%s", text)
        self.warnings.append(text)

    def _note_best(self, position: Position, history: list[dict[str, float]]) -> None:
        name = self._spec.keep_best
        if name is None or position.step or not history:
            return
        if name not in history[-1]:
            raise ParamError(f"keep_best={name!r} is not in history, which has {sorted(history[-1])}")
        value = history[-1][name]
        if self._best is None or value < self._best[0]:
            self._best = (value, position)

    def restore(self) -> tuple[Position, State, State] | None:
        """The newest checkpoint that all ranks can read: where it is, rank 0's state, and this rank's own.

        Damaged ones, and ones within an epoch whose rows or batches were others, are passed over with a warning. None:
        there is none, or none is asked for.
        """
        collective = self._collective
        if not self._spec.resume:
            return None
        found = self._store.positions() if collective.rank == 0 else []
        told = collective.gather_bytes(json.dumps([[one.epoch, one.step] for one in found]).encode())[0]
        for epoch, step in json.loads(told):
            position = Position(epoch, step)
            state: tuple[State, State] | None = None
            try:
                state = self._read(position)
                trouble = ""
            except DamagedCheckpoint as error:
                trouble = str(error)
            except OSError as error:
                raise GangError.of_loss(f"the store at {self._spec.run_url} can't be read: {error}") from error
            troubles = [one.decode() for one in collective.gather_bytes(trouble.encode())]
            if not any(troubles):
                assert state is not None
                self._go_on_from(position, *state)
                return position, *state
            if collective.rank == 0:
                self._warn(f"passed over a checkpoint: {next(one for one in troubles if one)}")
        if collective.rank == 0:
            self._store.remove_after(None)
        return None

    def _go_on_from(self, position: Position, state: State, own: State) -> None:
        """Take away what was passed over, recall the best, and tell where the rows are others."""
        if self._collective.rank == 0:
            self._store.remove_after(position)
        kept = set(self._store.positions())
        for entry in state["history"]:
            at = Position(int(entry["epoch"]))
            name = self._spec.keep_best
            if name in entry and at in kept and (self._best is None or entry[name] < self._best[0]):
                self._best = (entry[name], at)
        self.rows_differ = self._store.facts(position)["fingerprint"] != self._facts["fingerprint"]
        if self.rows_differ and self._collective.rank == 0:
            self._warn(f"{position} the rows are no longer those that the run was trained on: keys or labels differ")

    def _read(self, position: Position) -> tuple[State, State]:
        first = _loaded(self._store.read(position, 0))
        if not position.step:
            return first, {}
        if self._store.facts(position)["world_size"] != self._facts["world_size"]:
            raise DamagedCheckpoint(f"the checkpoint {position} is of a gang of another size, within an epoch")
        own = first if self._collective.rank == 0 else _loaded(self._store.read(position, self._collective.rank))
        if own["facts"] != self._facts:
            raise DamagedCheckpoint(
                f"the checkpoint {position} is within an epoch, and the ranks' rows or settings have become others: "
                "does the DataFrame give the same rows each time (an unseeded rand() doesn't), in as many partitions?"
            )
        return first, own


class Snapshot:
    """Copies of tensors in the host's memory, which each copy uses again: fresh pages cost more than the copying."""

    def __init__(self) -> None:
        self._buffers: list[torch.Tensor] = []

    def take(self, state: State) -> State:
        """The state as it is now; valid until the next one is taken."""
        self._used = 0
        copied: State = self._copied(state)
        return copied

    def _copied(self, state: Any) -> Any:
        if isinstance(state, torch.Tensor):
            return self._buffer(state.detach()).copy_(state.detach())
        if isinstance(state, Mapping):
            return {key: self._copied(value) for key, value in state.items()}
        if isinstance(state, (list, tuple)):
            return type(state)(self._copied(value) for value in state)
        return state

    def _buffer(self, like: torch.Tensor) -> torch.Tensor:
        place, self._used = self._used, self._used + 1
        if place == len(self._buffers):
            self._buffers.append(torch.empty(0))
        found = self._buffers[place]
        if found.shape != like.shape or found.dtype != like.dtype:
            found = self._buffers[place] = torch.empty(like.shape, dtype=like.dtype, pin_memory=like.is_cuda)
        return found


def _loaded(data: bytes) -> State:
    try:
        state: State = torch.load(io.BytesIO(data), weights_only=True, map_location="cpu")
    except (pickle.UnpicklingError, RuntimeError) as error:
        raise DamagedCheckpoint(f"a checkpoint can't be read: {str(error).splitlines()[0]}") from error
    return state
