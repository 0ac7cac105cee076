"""Functions that `sparktrain.run` runs, written as their frameworks' documentation has them: nothing here is ours."""

from __future__ import annotations

from typing import Any


def ddp_mnist(path: str, epochs: int, batch_size: int) -> tuple[float, float]:
    """PyTorch's usual script: process group from the environment, DDP, DistributedSampler. Accuracy, and a sum."""
    import numpy as np
    import pyarrow.parquet as pq
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, TensorDataset
    from torch.utils.data.distributed import DistributedSampler

    dist.init_process_group("gloo")
    table = pq.read_table(path)
    pixels = np.frombuffer(b"".join(table["image"].to_pylist()), np.uint8).reshape(-1, 784)
    images = torch.from_numpy(pixels.copy()).float() / 255
    labels = torch.from_numpy(table["label"].to_numpy().copy()).long()
    train, test = TensorDataset(images[:8000], labels[:8000]), (images[8000:], labels[8000:])
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10)))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    sampler = DistributedSampler(train)
    loader = DataLoader(train, batch_size=batch_size, sampler=sampler)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
        print(f"rank {dist.get_rank()} epoch {epoch} loss {loss.item():.3f}")
    with torch.no_grad():
        accuracy = (model(test[0]).argmax(1) == test[1]).float().mean().item()
    total = sum(float(one.double().sum()) for one in model.parameters())
    dist.destroy_process_group()
    return accuracy, total


def multi_worker_mirrored(steps: int) -> tuple[int, list[float]]:
    """TensorFlow's custom training loop under MultiWorkerMirroredStrategy: replicas, and the weights found."""
    import numpy as np
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    rng = np.random.default_rng(0)
    features = rng.standard_normal((256, 3)).astype(np.float32)
    labels = features @ np.array([1.0, -2.0, 3.0], np.float32)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    data = tf.data.Dataset.from_tensor_slices((features, labels)).repeat().batch(64).with_options(options)
    batches = iter(strategy.experimental_distribute_dataset(data))
    with strategy.scope():
        weights = tf.Variable(tf.zeros(3))

    def replica_step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.linalg.matvec(x, weights) - y) ** 2)
        gradient = tf.distribute.get_replica_context().all_reduce("mean", tape.gradient(loss, weights))
        weights.assign_sub(0.1 * gradient)
        return loss

    @tf.function
    def step() -> Any:
        return strategy.run(replica_step, args=next(batches))

    for _ in range(steps):
        step()
    return strategy.num_replicas_in_sync, weights.numpy().tolist()


def jax_sum() -> tuple[int, int, float]:
    """JAX finds its coordinator by itself: processes, this one, and a sum over all devices."""
    import jax
    from jax.experimental import multihost_utils

    jax.config.update("jax_platforms", "cpu")
    jax.distributed.initialize()
    found = multihost_utils.process_allgather(jax.numpy.array([float(jax.process_index() + 1)]))
    return jax.process_count(), jax.process_index(), float(found.sum())
