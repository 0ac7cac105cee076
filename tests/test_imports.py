"""Importing the package is cheap, and what runs in a worker process never needs pyspark."""

import subprocess
import sys

WORKER_SIDE = (
    "sparktrain.backends",
    "sparktrain.backends.horovod",
    "sparktrain.backends.native",
    "sparktrain.backends.jax_cluster",
    "sparktrain.current",
    "sparktrain.errors",
    "sparktrain.function",
    "sparktrain.gang.delivery",
    "sparktrain.gang.events",
    "sparktrain.gang.failure",
    "sparktrain.gang.guard",
    "sparktrain.gang.log",
    "sparktrain.gang.port",
    "sparktrain.gang.process",
    "sparktrain.gang.rendezvous",
    "sparktrain.gang.resources",
    "sparktrain.gang.result",
    "sparktrain.gang.ring",
    "sparktrain.gang.sockets",
    "sparktrain.gang.spec",
    "sparktrain.gang.star",
    "sparktrain.gang.task",
    "sparktrain.gang.worker",
    "sparktrain.keras.archive",
    "sparktrain.keras.forward",
    "sparktrain.keras.predict",
    "sparktrain.keras.process",
    "sparktrain.keras.signature",
    "sparktrain.shards.arrow",
    "sparktrain.shards.assemble",
    "sparktrain.shards.plan",
    "sparktrain.shards.reader",
    "sparktrain.shards.rows",
    "sparktrain.shards.spool",
    "sparktrain.shards.tensors",
    "sparktrain.store.folder",
    "sparktrain.torch.predict",
    "sparktrain.torch.trainer",
    "sparktrain.xgboost.entry",
    "sparktrain.xgboost.predict",
    "sparktrain.xgboost.trainer",
)
BLOCK_PYSPARK = "import sys; sys.modules['pyspark'] = None"


def run_python(*statements: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(statements)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_the_packages_imports_no_framework() -> None:
    loaded = run_python(
        "import sys, sparktrain, sparktrain.keras, sparktrain.torch, sparktrain.xgboost",
        "print(sorted({'keras', 'torch', 'pyspark', 'pyarrow', 'tensorflow', 'xgboost'} & set(sys.modules)))",
    )
    assert loaded == "[]"


def test_the_worker_side_imports_without_pyspark() -> None:
    run_python(BLOCK_PYSPARK, *(f"import {module}" for module in WORKER_SIDE))


def test_what_predicts_with_keras_imports_it_late() -> None:
    loaded = run_python(
        "import sys, sparktrain.keras.predict",
        "print(sorted({'keras', 'tensorflow', 'jax', 'torch', 'pyspark'} & set(sys.modules)))",
    )
    assert loaded == "[]"


def test_a_worker_imports_no_framework_before_its_trainer() -> None:
    loaded = run_python(
        "import sys, sparktrain.gang.worker, sparktrain.gang.failure",
        "import sparktrain.backends.native, sparktrain.backends.horovod",
        "print(sorted({'horovod', 'torch', 'pyspark', 'pyarrow'} & set(sys.modules)))",
    )
    assert loaded == "[]"


def test_blocking_pyspark_is_noticed() -> None:
    failed = subprocess.run(
        [sys.executable, "-c", f"{BLOCK_PYSPARK}\nimport sparktrain.params"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert failed.returncode
    assert "pyspark" in failed.stderr
