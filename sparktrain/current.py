"""What a function that a gang runs knows of the gang, of itself in it, and of its rows."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from sparktrain.shards.rows import Rows


@dataclass(frozen=True)
class CurrentGang:
    """The gang as one rank's function sees it.

    Parameters
    ----------
    rank : int
        Of this process: 0 to world_size - 1.
    hosts : tuple of str
        Each rank's host, as Spark knows it.
    device : str
        ``"cpu"``, or ``"cuda"`` where Spark has assigned GPUs; the same on every rank.
    backend : str
    shard : Rows or None
        This rank's rows of the DataFrame; None: there is none.
    run_url : str or None
        The run's directory in the store; None: there is no store.
    scratch : str
        A directory of this process alone, gone after the run.
    """

    rank: int
    hosts: tuple[str, ...]
    device: str
    backend: str
    shard: Rows | None
    run_url: str | None
    scratch: str

    @property
    def world_size(self) -> int:
        """Ranks: `num_proc`."""
        return len(self.hosts)

    @property
    def local_rank(self) -> int:
        """Position among the ranks of the same host."""
        return self.hosts[: self.rank].count(self.hosts[self.rank])

    @property
    def local_world_size(self) -> int:
        """Ranks on this host."""
        return Counter(self.hosts)[self.hosts[self.rank]]


_current: CurrentGang | None = None


def enter(gang: CurrentGang) -> None:
    """From here on this process is a rank of that gang."""
    global _current
    _current = gang


def current_gang() -> CurrentGang:
    """The gang whose function this process runs.

    Raises
    ------
    RuntimeError
        Outside of what `sparktrain.run` runs.
    """
    if _current is None:
        raise RuntimeError("current_gang() is known only to functions and scripts that sparktrain.run runs")
    return _current
