"""PyTorch: `fit` against ``torchrun``, `transform` against pyspark's own ways."""
