"""Shards: one rank's rows, from DataFrame columns to batches of tensors.

`columns` (driver) turns a schema into `TensorSpec`s, `spool` (Spark task) writes Arrow batches as raw
tensors to unlinked local files, `reader` (worker process) maps those files, `plan` orders the rows. Large
arrays and all files lie on the local disk (`disk`).
"""
