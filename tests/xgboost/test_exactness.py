"""N ranks give the model of one plain XGBoost process, whatever the split, where features have few distinct values."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.xgboost.cases import cases, plain_xgboost
from tests.xgboost.rank import run_ranks


@pytest.mark.parametrize("world", [1, 2, 3])
def test_n_ranks_predict_what_one_process_predicts(world: int, tmp_path: Path) -> None:
    found = run_ranks("tests.xgboost.cases:run_all", world, tmp_path)
    for case in cases(world):
        expected = plain_xgboost(case.problem)
        results = [rank[case.name] for rank in found]
        for predictions, history in results:
            np.testing.assert_allclose(predictions, expected, atol=1e-5, err_msg=case.name)
            assert len(history) == 8
            assert history == results[0][1]
            np.testing.assert_array_equal(predictions, results[0][0])
