"""Progress as users see it: a notebook's widget or text, a terminal's line, and nothing anywhere else."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
import threading
from pathlib import Path

import nbformat
import pytest
import torch
from nbclient import NotebookClient
from pyspark.sql import SparkSession
from torch import nn

from sparktrain.torch import TorchEstimator

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[2]
IN_A_NOTEBOOK = """
import sys, time
if {without_widgets}:
    sys.modules["ipywidgets"] = None
from sparktrain.gang.events import EventRelay, ProgressBar, ProgressListener
bar = ProgressBar("TorchEstimator")
listener = ProgressListener("127.0.0.1", "127.0.0.1", bar)
with EventRelay(listener.address) as relay:
    for done in range(1, 5):
        relay.send(dict(
            kind="progress", epoch=(done + 1) // 2, epochs=2, step=2 - done % 2, steps=2,
            metrics={{"loss": 0.25}}, rows_per_s=1e6,
        ))
        time.sleep(0.2)
listener.close()
bar.close()
"""


def run_notebook(*, without_widgets: bool) -> nbformat.NotebookNode:
    source = IN_A_NOTEBOOK.format(without_widgets=without_widgets)
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)])
    NotebookClient(notebook, timeout=100, kernel_name="python3", resources={"metadata": {"path": str(ROOT)}}).execute()
    return notebook


def test_a_notebook_shows_a_widget() -> None:
    notebook = run_notebook(without_widgets=False)
    (output,) = notebook.cells[0].outputs
    assert "application/vnd.jupyter.widget-view+json" in output.data
    widgets = notebook.metadata.widgets["application/vnd.jupyter.widget-state+json"]["state"].values()
    (bar,) = [widget["state"] for widget in widgets if widget["model_name"] == "FloatProgressModel"]
    assert (bar["value"], bar["max"], bar["bar_style"]) == (4, 4, "success")
    texts = [widget["state"]["value"] for widget in widgets if widget["model_name"] == "HTMLModel"]
    texts = [text.replace("\u2007", " ") for text in texts]  # spaces as wide as a digit
    assert "TorchEstimator epoch 2/2" in texts[0]
    assert "loss=0.25, rows/s=1,000,000" in texts[1]


def test_a_notebook_without_ipywidgets_shows_text() -> None:
    outputs = run_notebook(without_widgets=True).cells[0].outputs
    assert {(output.output_type, output.name) for output in outputs} == {("stream", "stdout")}
    text = "".join(output.text for output in outputs)
    assert "\rTorchEstimator epoch 2/2: 100%" in text
    assert "4/4" in text


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_a_terminal_shows_one_live_line_and_nothing_with_verbose_0() -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))  # rows, columns
    shown = bytearray()

    def read() -> None:
        try:
            while data := os.read(ours, 4096):
                shown.extend(data)
        except OSError:  # the other side is closed
            pass

    reader = threading.Thread(target=read)
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.integration.progress_session"]
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        reader.start()
        try:
            assert process.wait(180) == 0, shown.decode()[-4000:]
        finally:
            process.kill()
            reader.join()
            os.close(ours)
    text = shown.decode()
    silent = text.partition("verbose=0 begins\r\n")[2].partition("verbose=0 ends")[0]
    live = text.partition("verbose=1 begins\r\n")[2].partition("verbose=1 ends")[0]
    assert silent == ""
    assert "\rTorchEstimator epoch 2/2: 100%" in live
    assert "loss=" in live
    assert live.count("\n") == 1, "the line is drawn over and over, and ended once"


def test_output_into_a_pipe_or_file_is_left_alone(spark: SparkSession, capfd: pytest.CaptureFixture[str]) -> None:
    df = spark.range(100).selectExpr("cast(id / 100 as float) x", "cast(id / 50 as float) y")
    estimator = TorchEstimator(
        model=nn.Linear(1, 1),
        optimizer=torch.optim.Adam,
        loss=nn.MSELoss(),
        feature_cols=["x"],
        label_cols=["y"],
        num_proc=2,
    )
    capfd.readouterr()
    assert estimator.getVerbose() == 1
    estimator.fit(df)
    assert capfd.readouterr() == ("", "")
