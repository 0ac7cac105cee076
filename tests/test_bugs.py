"""Each test fails on the current sparktrain; the section says where it goes once it passes."""

import io
import os
import pickle
import signal
import socket
import threading
import time

import numpy as np
import pyarrow as pa
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sparktrain import params
from sparktrain.errors import ColumnError, ParamError, PersistenceError, RankFailed
from sparktrain.gang.events import EventRelay, ProgressListener
from sparktrain.gang.failure import RankReport, ReportedFailure, find_report
from sparktrain.gang.process import WorkerProcess
from sparktrain.persistence import RestrictedUnpickler
from sparktrain.shards.arrow import Faults, column_values
from sparktrain.shards.assemble import assemble
from sparktrain.shards.tensors import ColumnSpec, TensorSpec
from sparktrain.torch import bundle
from sparktrain.torch.loss import Criterion
from tests.gang import tiny_trainer
from tests.gang.tiny_task import VIEW, WAIT_S, job_of
from tests.shards.arrays import sparse, vectors


def faults_of(role, values, dtype="float32", integral=False):
    spec = TensorSpec("a", role, (ColumnSpec("a", 0, "number"),), dtype, (), integral=integral)
    faults = Faults()
    assemble(spec, [pa.array(values)], faults)
    return str(faults)


# 1 tests/shards/test_assemble.py
def test_negative_integer_weights_are_counted():
    assert faults_of("weight", [-1, 2, -3]) == "column 'a': 2 weights below 0 or infinite"


# 2 tests/shards/test_assemble.py
def test_nan_class_ids_are_counted_without_a_cast_warning():
    assert faults_of("label", [0.0, float("nan")], "int64", True) == "column 'a': 1 rows that are NaN"


def test_infinite_class_ids_are_counted():
    assert "'a': 1 rows" in faults_of("label", [0.0, float("inf")], "int64", True)


# 3 tests/shards/test_arrow.py
def faults_of_column(kind, array):
    faults = Faults()
    column_values(ColumnSpec("x", 0, kind), array, faults)
    return str(faults)


def test_ragged_inner_lists_are_counted_by_row():
    array = pa.array([[[1], [3, 4], [5, 6], [1, 2]], [[1], [2], [3], [4]]])
    assert "'x': 1 rows of a length" in faults_of_column("list", array)


def test_sparse_indices_are_counted_by_vector():
    assert "'x': 1 sparse vectors" in faults_of_column("vector", vectors(sparse(2, i3=1, i4=1, i5=1), sparse(2)))


# 4 tests/shards/test_arrow.py
def test_sparse_vectors_of_size_zero():
    found = column_values(ColumnSpec("x", 0, "vector"), vectors(sparse(0), sparse(0)), Faults())
    assert found.shape == (2, 0)


# 5 tests/gang/test_events.py
def test_over_ipv6():
    got, arrived = [], threading.Event()
    listener = ProgressListener("::1", "::1", lambda event: (got.append(event), arrived.set()))
    try:
        with EventRelay(listener.address) as relay:
            relay.send({"kind": "progress"})
            assert arrived.wait(5)
    finally:
        listener.close()


# 6 tests/gang/test_events.py
def test_a_silent_stranger_does_not_keep_the_task_out():
    arrived = threading.Event()
    listener = ProgressListener("127.0.0.1", "127.0.0.1", lambda event: arrived.set())
    try:
        with socket.create_connection(("127.0.0.1", listener.address.port)):
            time.sleep(0.2)
            with EventRelay(listener.address) as relay:
                relay.send({"kind": "progress"})
                assert arrived.wait(15)
    finally:
        listener.close()


# 7 tests/gang/test_events.py
def test_close_ends_the_thread_while_a_task_is_still_connected():
    arrived = threading.Event()
    listener = ProgressListener("127.0.0.1", "127.0.0.1", lambda event: arrived.set())
    with EventRelay(listener.address) as relay:
        relay.send({"kind": "progress"})
        assert arrived.wait(15)
        listener.close()
        assert not listener._thread.is_alive()


# 8 tests/gang/test_process.py
def test_a_worker_that_died_before_its_job_is_lost():
    with WorkerProcess(VIEW, tiny_trainer.__name__, []) as worker:
        worker.wait_ready(WAIT_S)
        os.kill(worker.pid, signal.SIGKILL)
        worker._process.wait(WAIT_S)
        with pytest.raises(ReportedFailure) as caught:
            worker.run(job_of("finish", 1), lambda event: None)
    report = find_report(str(caught.value))
    assert report.cause == "lost"
    assert "SIGKILL" in report.message


# 9 tests/gang/test_process.py (then delete tests/gang/conftest.py)
def test_the_log_pipe_is_closed_with_the_worker():
    with WorkerProcess(VIEW, tiny_trainer.__name__, []) as worker:
        worker.wait_ready(WAIT_S)
    assert worker._process.stdout.closed


# 10 tests/gang/test_failure.py
def test_a_user_s_class_of_the_same_name_is_a_failed_rank():
    """As of a worker that raised, say, pandas.errors.DataError: its traceback must not be lost."""
    with WorkerProcess(VIEW, __name__, [1]) as worker:
        worker.wait_ready(WAIT_S)
        job = job_of("x", 1)
        object.__setattr__(job, "trainer", f"{__name__}:raise_stranger")
        with pytest.raises(ReportedFailure) as caught:
            worker.run(job, lambda event: None)
    assert type(find_report(str(caught.value)).to_error()) is RankFailed


def raise_stranger(context):
    raise type("DataError", (Exception,), {"__module__": "pandas.errors"})("no numeric types to aggregate")


# 11 tests/test_params.py
@pytest.mark.parametrize("convert", [params.number(above=0)])
def test_infinite_seconds_are_refused(convert):
    with pytest.raises(ValueError, match="a number"):
        convert(float("inf"))


# 12 tests/torch/test_bundle.py
def test_a_module_called_extra_does_not_clash_with_other_tensors():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.extra = nn.ParameterList([nn.Parameter(torch.zeros(2))])

    net = Net()
    packed = bundle.dump((net, torch.ones(2)), net)
    again, other = bundle.load(packed.structure, packed.tensors)
    assert other.tolist() == [1, 1]
    assert again.extra[0].tolist() == [0, 0]


# 13 tests/torch/test_bundle.py
def test_parametrized_modules_are_a_param_error_at_least():
    net = nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))
    with pytest.raises(ParamError, match="can't be pickled"):
        bundle.dump(net, net)


# 14 tests/test_persistence_unpickler.py
def load(data, *allow):
    return RestrictedUnpickler(io.BytesIO(data), allow).load()


def by_name(module, name, *arguments):
    """A pickle that calls what `name` (dots and all) is in `module`."""

    def text(value):
        return b"\x8c" + bytes([len(value)]) + value.encode()

    body = b"".join(text(one) for one in arguments)
    return b"\x80\x04" + text(module) + text(name) + b"\x93(" + body + b"tR."


@pytest.mark.parametrize("name", ["subprocess.os.getpid", "os.getpid", "signal.getsignal"])
def test_an_allowed_package_is_no_way_to_what_it_imports(name):
    with pytest.raises(PersistenceError):
        RestrictedUnpickler(io.BytesIO(), ("sparktrain",)).find_class("sparktrain.gang.process", name)


def test_an_allowed_package_is_no_way_to_run_a_program(tmp_path):
    marker = str(tmp_path / "ran")
    with pytest.raises(PersistenceError):
        load(by_name("sparktrain.gang.process", "os.mkdir", marker), "sparktrain")
    assert not os.path.exists(marker)


# 15 tests/test_persistence_unpickler.py
@pytest.mark.parametrize(
    "value", [torch.float32, torch.channels_last, np.arange(3)], ids=["torch.dtype", "memory format", "ndarray"]
)
def test_values_a_module_often_holds_are_admitted(value):
    net = nn.Linear(2, 2)
    net.value = value
    packed = bundle.dump(net, net)
    again = bundle.load(packed.structure, packed.tensors, lambda file: RestrictedUnpickler(file, ()))
    assert np.array_equal(again.value, value)


@pytest.mark.parametrize("make", [torch.optim.Adafactor, lambda p: torch.optim.Muon(p)])
def test_every_optimizer_of_torch_is_admitted(make):
    optimizer = make([nn.Parameter(torch.ones(2, 2))])
    packed = bundle.dump(optimizer)
    bundle.load(packed.structure, packed.tensors, lambda file: RestrictedUnpickler(file, ()))


@pytest.mark.parametrize("module", ["builtins", "os"])
def test_the_hint_never_asks_to_allow_what_can_run_anything(module):
    with pytest.raises(PersistenceError) as caught:
        RestrictedUnpickler(io.BytesIO(), ()).find_class(module, "getattr")
    assert f"allow=('{module}',)" not in str(caught.value)


# 16 tests/torch/test_loss.py
@pytest.mark.parametrize("loss", [F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss])
def test_functional_losses_do_not_broadcast_either(loss):
    with pytest.raises(ColumnError, match="compares equal shapes"):
        Criterion(loss).align(torch.ones(3, 3), torch.ones(3))


# 17 tests/gang/test_failure.py (note: pickle is imported for the file this goes to)
def test_a_report_s_text_keeps_its_mark_when_a_server_cuts_the_end():
    report = RankReport(0, 1, "h", "error", "ValueError", "short", "line of a traceback\n" * 200)
    assert find_report(str(report)[: len(str(report)) // 2]) == report
    assert pickle
