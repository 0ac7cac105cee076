"""What each loss is divided by in a step: counted locally, added up over the gang where that is needed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from sparktrain.torch.collective import Collective
from sparktrain.torch.loss import Criterion
from sparktrain.torch.step import Batch


class Denominators:
    """Denominators of the global batch.

    Plain means need no exchange: the plan knows the rows of every rank. Weighted ones, and those that
    count by label, add up over the gang before the step's forward pass.

    Parameters
    ----------
    criteria : sequence of Criterion
    counted : sequence of bool
        Whether a loss counts its denominator by label (class weights, ignored labels).
    weighted : bool
        Whether rows have weights.
    collective : Collective
    device : torch.device
    """

    def __init__(
        self,
        criteria: Sequence[Criterion],
        counted: Sequence[bool],
        weighted: bool,
        collective: Collective,
        device: torch.device,
    ) -> None:
        self._criteria = list(criteria)
        self._counted = list(counted)
        self._exchanged = [
            not c.summed and (weighted or by_label) for c, by_label in zip(criteria, counted, strict=True)
        ]
        self._collective = collective
        self._device = device

    def local(self, batch: Batch, global_rows: int) -> Tensor:
        """A batch's own denominators, shape (losses,); a sum counts as its share of the step."""
        shares = [
            self._local(criterion, counted, batch, position, global_rows)
            for position, (criterion, counted) in enumerate(zip(self._criteria, self._counted, strict=True))
        ]
        return torch.stack(shares)

    def _local(self, criterion: Criterion, counted: bool, batch: Batch, position: int, global_rows: int) -> Tensor:
        if criterion.summed:  # one a step: history has the mean of the steps' sums
            return torch.tensor(batch.rows / global_rows, device=self._device)
        if counted:
            rows = criterion.denominators(batch.targets[position])
            return (rows if batch.weight is None else rows * batch.weight).sum()
        if batch.weight is not None:
            return batch.weight.sum()
        return torch.tensor(float(batch.rows), device=self._device)

    def scales(self, local: Iterable[Tensor], global_rows: int) -> list[Tensor | float]:
        """What scales each loss's numerator, so that the mean of all ranks' gradients is the global one.

        Every rank calls it once a step, also one without rows.
        """
        world = self._collective.world_size
        total = torch.zeros(len(self._criteria), device=self._device)
        if any(self._exchanged):
            for share in local:
                total += share
            self._collective.sum(total)
        scales: list[Tensor | float] = []
        for position, criterion in enumerate(self._criteria):
            if criterion.summed:
                scales.append(float(world))
            elif self._exchanged[position]:
                share = total[position]
                scales.append(torch.where(share > 0, world / share, torch.zeros_like(share)))
            else:
                scales.append(world / global_rows)
        return scales
