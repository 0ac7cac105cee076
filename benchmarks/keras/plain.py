"""The same training without Spark: Keras's `Model.fit` in one process.

    KERAS_BACKEND=tensorflow python -m benchmarks.keras.plain mlp DIRECTORY --epochs 3 --batch-size 512

DIRECTORY holds ``features.npy``, shape (rows, ...), and ``labels.npy``. Prints one line of JSON: the loss of the last
epoch, the seconds of each epoch, and those that the import took. Leaves as a worker does, without clean-up.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("work")
    parser.add_argument("directory", type=Path, help="where features.npy and labels.npy are")
    parser.add_argument("--rows", type=int, help="only so many")
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--batch-size", type=int, required=True)
    args = parser.parse_args()
    threads = os.environ["OMP_NUM_THREADS"]
    os.environ["PJRT_NPROC"] = os.environ["NPROC"] = threads  # XLA's, as sparktrain's workers set them

    started = time.perf_counter()
    import keras

    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(int(threads))
        tf.config.threading.set_inter_op_parallelism_threads(int(threads))
    import numpy as np

    from benchmarks.keras.workloads import WORKLOADS

    imported = time.perf_counter() - started

    class Clock(keras.callbacks.Callback):
        def on_train_begin(self, logs: object = None) -> None:
            self.epochs: list[float] = []

        def on_epoch_begin(self, epoch: int, logs: object = None) -> None:
            self.begun = time.perf_counter()

        def on_epoch_end(self, epoch: int, logs: object = None) -> None:
            self.epochs.append(time.perf_counter() - self.begun)

    work, clock = WORKLOADS[args.work], Clock()
    features, labels = (np.load(args.directory / f"{name}.npy")[: args.rows] for name in ("features", "labels"))
    model = work.make_network()
    model.compile(optimizer=keras.optimizers.Adam(1e-3), loss=work.loss)
    fitted = model.fit(features, labels, batch_size=args.batch_size, epochs=args.epochs, verbose=0, callbacks=[clock])
    print(json.dumps({"loss": fitted.history["loss"][-1], "epochs": clock.epochs, "import_s": imported}), flush=True)
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
