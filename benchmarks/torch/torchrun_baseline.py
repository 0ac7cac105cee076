"""The same training without Spark: PyTorch's DistributedDataParallel, started by ``torchrun``.

    torchrun --standalone --nproc-per-node 2 benchmarks/torch/torchrun_baseline.py rows.npy

`rows.npy` has shape (rows, features + 1), float32; the last column is the label. Rank 0 prints one line
of JSON: the last epoch's mean loss over all rows, and the seconds that the epochs took.
"""

from __future__ import annotations

import argparse
import json
import os
import time

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

FEATURES = 20
LEARNING_RATE = 1e-3


def make_network() -> nn.Module:
    """The MLP of both sides, with the same first weights whoever makes it."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(FEATURES, 64), nn.ReLU(), nn.Linear(64, 1))


def train_epoch(
    model: nn.Module, optimizer: torch.optim.Optimizer, features: Tensor, labels: Tensor, rows: Tensor, batch_size: int
) -> float:
    """One pass over `rows`, in their order; returns the mean loss over the rows of all ranks."""
    loss_function = nn.MSELoss()
    total = torch.zeros(1, dtype=torch.float64)
    for batch in rows.split(batch_size):
        optimizer.zero_grad(set_to_none=True)
        loss = loss_function(model(features[batch]), labels[batch])
        loss.backward()
        optimizer.step()
        total += loss.detach() * len(batch)
    sums = torch.tensor([total.item(), len(rows)], dtype=torch.float64)
    dist.all_reduce(sums)
    return float(sums[0] / sums[1])


def train(data: Tensor, epochs: int, batch_size: int) -> dict[str, float]:
    """All epochs on this rank's part of the rows; the last epoch's loss, and the seconds they took."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    features, labels = data[:, :FEATURES].contiguous(), data[:, FEATURES:].contiguous()
    model = DistributedDataParallel(make_network())
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    loss = float("nan")
    started = time.perf_counter()
    for epoch in range(epochs):
        order = torch.randperm(len(data), generator=torch.Generator().manual_seed(epoch))
        loss = train_epoch(model, optimizer, features, labels, order[rank::ranks], batch_size)
    return {"loss": loss, "training_s": time.perf_counter() - started}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("data", help="the .npy file")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=256, help="rows a rank brings to a step")
    args = parser.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    result = train(torch.from_numpy(np.load(args.data)), args.epochs, args.batch_size)
    if dist.get_rank() == 0:
        print(json.dumps(result), flush=True)
    dist.destroy_process_group()
    # Gloo's threads can outlive the group (the model holds it) and abort one run in ten at the interpreter's end.
    os._exit(0)


if __name__ == "__main__":
    main()
