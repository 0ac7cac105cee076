"""The gang: one worker process per barrier task, launched, met, watched and ended together.

`launch` runs on the driver, `task` in Spark's Python worker, `worker` is the child process.
"""
