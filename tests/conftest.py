"""One Spark session for all tests that need one; each wait in the tests has its own time-out."""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

TEST_ID = "SPARKTRAIN_TEST_ID"

os.environ.setdefault("KERAS_BACKEND", "torch")  # of the tests' own process, which has loaded torch anyway


@pytest.fixture(scope="session", autouse=True)
def test_id() -> str:
    """Marks every process that these tests start, through its environment."""
    return os.environ.setdefault(TEST_ID, uuid.uuid4().hex)


@pytest.fixture(scope="session")
def spark(test_id: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    session = (
        SparkSession.builder.master("local[3]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()
