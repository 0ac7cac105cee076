"""The same training without Spark: PyTorch's DistributedDataParallel, started by ``torchrun``.

    torchrun --standalone --nproc-per-node 2 -m benchmarks.torch.torchrun_baseline mlp DIRECTORY

DIRECTORY holds ``features.npy``, shape (rows, ...), and ``labels.npy``. Rank 0 prints one line of JSON: the
last epoch's mean loss over all rows, and the seconds that the epochs took.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.torch.workloads import WORKLOADS, Workload


def train_epoch(
    model: nn.Module,
    loss_function: nn.Module,
    optimizer: torch.optim.Optimizer,
    features: Tensor,
    labels: Tensor,
    batches: tuple[Tensor, ...],
) -> float:
    """One pass over the rows of `batches`; returns the mean loss over the rows of all ranks."""
    total = torch.zeros(1, dtype=torch.float64)
    rows = 0
    for batch in batches:
        optimizer.zero_grad(set_to_none=True)
        loss = loss_function(model(features[batch]), labels[batch])
        loss.backward()
        optimizer.step()
        total += loss.detach() * len(batch)
        rows += len(batch)
    sums = torch.tensor([total.item(), rows], dtype=torch.float64)
    dist.all_reduce(sums)
    return float(sums[0] / sums[1])


def train(work: Workload, features: Tensor, labels: Tensor, epochs: int, batch_size: int) -> dict[str, float]:
    """All epochs on this rank's part of the rows; the last epoch's loss, and the seconds they took."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model = DistributedDataParallel(work.make_network())
    optimizer = torch.optim.Adam(model.parameters(), lr=work.learning_rate)
    loss = float("nan")
    started = time.perf_counter()
    for epoch in range(epochs):
        order = torch.randperm(len(features), generator=torch.Generator().manual_seed(epoch))
        loss = train_epoch(model, work.loss(), optimizer, features, labels, order[rank::ranks].split(batch_size))
    return {"loss": loss, "training_s": time.perf_counter() - started}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("work", choices=WORKLOADS)
    parser.add_argument("directory", type=Path, help="where features.npy and labels.npy are")
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--batch-size", type=int, required=True, help="rows a rank brings to a step")
    args = parser.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    features, labels = (torch.from_numpy(np.load(args.directory / f"{name}.npy")) for name in ("features", "labels"))
    result = train(WORKLOADS[args.work], features, labels, args.epochs, args.batch_size)
    if dist.get_rank() == 0:
        print(json.dumps(result), flush=True)
    dist.destroy_process_group()
    # Gloo's threads can outlive the group (the model holds it) and abort one run in ten at the interpreter's end.
    os._exit(0)


if __name__ == "__main__":
    main()
