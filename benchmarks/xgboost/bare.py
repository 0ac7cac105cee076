"""Bare XGBoost in one process: ``python -m benchmarks.xgboost.bare DIRECTORY``; prints what it took, as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import xgboost as xgb

from benchmarks import report
from benchmarks.xgboost.workload import CORES, SETTINGS


def main() -> None:
    directory = Path(sys.argv[1])
    features, labels = np.load(directory / "features.npy"), np.load(directory / "labels.npy")
    rounds = SETTINGS["n_estimators"]
    settings = {name: value for name, value in SETTINGS.items() if name != "n_estimators"}

    def train() -> xgb.Booster:
        matrix = xgb.QuantileDMatrix(features, labels, nthread=CORES)
        return xgb.train({"objective": "binary:logistic", "nthread": CORES, **settings}, matrix, rounds)

    seconds, booster = report.stopwatch(train)
    booster.set_param({"nthread": CORES})
    predict_s, predicted = report.stopwatch(lambda: booster.inplace_predict(features))
    loss = -np.mean(np.log(np.where(labels > 0, predicted, 1 - predicted)))
    print(json.dumps({"fit_s": seconds, "predict_s": predict_s, "logloss": float(loss)}))


if __name__ == "__main__":
    main()
