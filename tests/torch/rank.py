"""One rank of the semantic matrix, without Spark: ``python -m tests.torch.rank RANK WORLD HOST PORT FD OUT``."""

from __future__ import annotations

import os
import sys

import torch

from sparktrain.gang.spec import Gang
from sparktrain.torch.collective import Collective, join
from sparktrain.torch.trainer import Trainer, TrainObjects
from tests.torch.cases import Case, cases, shard_of


def run_case(case: Case, collective: Collective, arrival: int) -> dict[str, object]:
    model = case.model()
    objects = TrainObjects(model, case.problem.optimizer(model), [case.problem.loss()], {})
    shard = shard_of(case, collective.rank, arrival)
    trainer = Trainer(case.spec(), objects, shard, collective, torch.device("cpu"), lambda event: None)
    history = trainer.fit()
    return {
        "weights": [t.detach().clone() for t in model.state_dict().values()],
        "loss": [entry["loss"] for entry in history],
    }


def main() -> None:
    rank, world, port, fd = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[4]), int(sys.argv[5])
    torch.set_num_threads(1)
    gang = Gang(rank, (sys.argv[3],) * world, (sys.argv[3], port), collective_timeout_s=60)
    with join(gang, fd if rank == 0 else None) as collective:
        results = {
            case.name: [run_case(case, collective, arrival=10 * run + rank) for run in range(2)]
            for case in cases(world)
        }
    torch.save(results, f"{sys.argv[6]}/{rank}.pt")


if __name__ == "__main__":
    main()
    os._exit(0)  # as the worker does: see `sparktrain.torch.collective.join`
