"""The README's examples, run as a reader runs them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.integration
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("heading", "metric"), [("## Example", "val_loss"), ("## Keras", "val_mae"), ("## XGBoost", "val_logloss")]
)
def test_the_examples_run(heading: str, metric: str, tmp_path: Path) -> None:
    section = (ROOT / "README.md").read_text().partition(f"{heading}\n")[2]
    found = re.search(r"```python\n(.*?)```", section, re.DOTALL)
    assert found is not None
    script = tmp_path / "example.py"
    script.write_text(found[1])
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert f"'{metric}'" in done.stdout
    assert "|prediction" in done.stdout.replace(" ", "")
