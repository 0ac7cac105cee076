"""Spark-native distributed training: ``Estimator.fit(df)`` on a gang of processes.

The estimators live in one package per framework, so that importing one never imports another:
``sparktrain.torch`` holds `TorchEstimator` and `TorchModel`. Importing this package imports no
framework and no Spark.
"""

__version__ = "0.1.0"
