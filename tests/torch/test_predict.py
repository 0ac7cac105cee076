"""A module's outputs as Spark ML's columns, and the predictor that runs in Spark's Python worker."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyspark import SparkFiles
from torch import Tensor, nn

from sparktrain.errors import DataError
from sparktrain.shards.arrow import Faults, column_values
from sparktrain.shards.ragged import Ragged
from sparktrain.shards.tensors import ColumnSpec
from sparktrain.torch import bundle, predict
from sparktrain.torch.predict import TorchPredictor, classify, raw_column, vector_column

# Classification


def test_logits_of_several_classes() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0], [0.0, 0.0, 5.0]])
    raw, probability, prediction = classify(logits, "logits", 0.5)
    assert torch.equal(raw, logits.double())
    torch.testing.assert_close(probability, torch.softmax(logits.double(), dim=1))
    assert prediction.tolist() == [0.0, 2.0]
    assert {raw.dtype, probability.dtype, prediction.dtype} == {torch.float64}


def test_probabilities_of_several_classes() -> None:
    given = torch.tensor([[0.2, 0.8], [0.6, 0.4]])
    raw, probability, prediction = classify(given, "probabilities", 0.5)
    assert torch.equal(probability, given.double())
    torch.testing.assert_close(torch.softmax(raw, dim=1), probability)
    assert prediction.tolist() == [1.0, 0.0]


@pytest.mark.parametrize("shape", [(3,), (3, 1)])
def test_one_logit_is_the_score_of_class_1(shape: tuple[int, ...]) -> None:
    z = torch.tensor([-2.0, 0.0, 3.0])
    raw, probability, prediction = classify(z.reshape(shape), "logits", 0.5)
    p = torch.sigmoid(z.double())
    assert torch.equal(raw, torch.stack([-z, z], dim=1).double())
    torch.testing.assert_close(probability, torch.stack([1 - p, p], dim=1))
    assert prediction.tolist() == [0.0, 0.0, 1.0], "0.5 is not above the threshold"


@pytest.mark.parametrize("shape", [(3,), (3, 1)])
def test_one_sigmoid_output(shape: tuple[int, ...]) -> None:
    p = torch.tensor([0.2, 0.5, 0.9])
    raw, probability, prediction = classify(p.reshape(shape), "probabilities", 0.5)
    torch.testing.assert_close(probability, torch.stack([1 - p, p], dim=1).double())
    torch.testing.assert_close(raw, torch.stack([-torch.logit(p), torch.logit(p)], dim=1).double(), atol=1e-6, rtol=0)
    assert prediction.tolist() == [0.0, 0.0, 1.0]


def test_the_threshold_moves_one_score_only() -> None:
    assert classify(torch.tensor([0.2, 0.4, 0.9]), "probabilities", 0.3)[2].tolist() == [0.0, 1.0, 1.0]
    assert classify(torch.tensor([[0.6, 0.4]]), "probabilities", 0.3)[2].tolist() == [0.0]


# Columns


@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 3), (1, 1), (2, 1, 3), (0,)])
def test_raw_columns_are_as_deep_as_the_shape(shape: tuple[int, ...]) -> None:
    output = torch.arange(4 * int(np.prod(shape)), dtype=torch.float32).reshape(4, *shape)
    column = raw_column(output, shape)
    assert column.to_pylist() == (output.flatten() if shape == (1,) else output).tolist()
    depth, kind = 0, column.type
    while pa.types.is_list(kind):
        depth, kind = depth + 1, kind.value_type
    assert (depth, kind) == (0 if shape == (1,) else len(shape), pa.float32())


@pytest.mark.parametrize(
    ("dtype", "arrow"),
    [
        (torch.float16, pa.float32()),
        (torch.bfloat16, pa.float32()),
        (torch.float64, pa.float64()),
        (torch.int64, pa.int64()),
        (torch.int8, pa.int8()),
        (torch.uint8, pa.int16()),
        (torch.bool, pa.bool_()),
    ],
)
def test_raw_columns_have_a_type_that_spark_has(dtype: torch.dtype, arrow: pa.DataType) -> None:
    assert raw_column(torch.tensor([0, 1], dtype=dtype), ()).type == arrow


def test_a_transposed_output() -> None:
    output = torch.arange(6.0).reshape(3, 2).T
    assert raw_column(output, (3,)).to_pylist() == output.tolist()


def test_vector_columns_are_dense_vectors() -> None:
    rows = np.array([[0.25, 0.75], [1.0, 0.0]])
    column = vector_column(rows)
    assert column.to_pylist()[0] == {"type": 1, "size": None, "indices": None, "values": [0.25, 0.75]}
    assert column.type == pa.struct(
        [
            ("type", pa.int8()),
            ("size", pa.int32()),
            ("indices", pa.list_(pa.int32())),
            ("values", pa.list_(pa.float64())),
        ]
    )
    faults = Faults()
    again = column_values(ColumnSpec("probability", 0, "vector"), column, faults)
    assert again is not None
    np.testing.assert_array_equal(again, rows)


# The predictor

MakePredictor = Callable[..., TorchPredictor]


@pytest.fixture
def predictor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> MakePredictor:
    """Makes a predictor whose weights lie where Spark's files would be."""
    monkeypatch.setattr(SparkFiles, "get", lambda name: str(tmp_path / name))
    monkeypatch.setattr(predict, "_models", type(predict._models)())

    def make(net: nn.Module, *shapes: tuple[int, ...], **settings: Any) -> TorchPredictor:
        packed = bundle.dump((net, settings.pop("transform_batch", None)), net)
        name = f"{abs(hash(packed.structure))}.safetensors"
        (tmp_path / name).write_bytes(packed.tensor_bytes())
        defaults = {
            "prediction_type": "raw",
            "outputs": "logits",
            "threshold": 0.5,
            "batch_size": 2,
            "models_per_gpu": 4,
        }
        return TorchPredictor(packed.structure, name, output_shapes=shapes, **{**defaults, **settings})  # type: ignore[arg-type]

    return make


class Counted(nn.Module):
    """Two outputs; dropout, and a largest batch that it takes."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 3)
        self.drop = nn.Dropout(0.9)

    def forward(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        if len(rows) > 2:
            raise ValueError("batch too large")
        out = self.drop(self.linear(rows))
        return out, out.sum(1)


ROWS = np.arange(10, dtype="float32").reshape(5, 2)


def test_raw_outputs_in_batches_and_in_eval_mode(predictor: MakePredictor) -> None:
    net = Counted()
    vectors, sums = predictor(net, (3,), ())([ROWS])
    expected = net.linear(torch.from_numpy(ROWS))
    np.testing.assert_allclose(vectors.to_pylist(), expected.tolist(), rtol=1e-6)
    np.testing.assert_allclose(sums.to_pylist(), expected.sum(1).tolist(), rtol=1e-6)


def test_read_only_inputs_are_not_written_to(predictor: MakePredictor) -> None:
    class InPlace(nn.Module):
        def forward(self, rows: Tensor) -> Tensor:
            return rows.mul_(2)

    rows = ROWS.copy()
    rows.flags.writeable = False
    (column,) = predictor(InPlace(), (2,))([rows])
    assert column.to_pylist() == (ROWS * 2).tolist()
    np.testing.assert_array_equal(rows, ROWS)


def test_several_inputs(predictor: MakePredictor) -> None:
    class Add(nn.Module):
        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return a.sum(1) + b

    (column,) = predictor(Add(), ())([ROWS, np.arange(5)])
    assert column.to_pylist() == [1.0, 6.0, 11.0, 16.0, 21.0]


class Sum(nn.Module):
    """Sums what the mask marks."""

    def forward(self, tokens: Tensor, tokens_mask: Tensor) -> Tensor:
        assert tokens.shape == tokens_mask.shape
        return torch.where(tokens_mask, tokens, 1000).sum(1)


@pytest.mark.parametrize("names", [None, ("tokens", "tokens_mask")])
def test_padded_inputs_come_with_their_mask(predictor: MakePredictor, names: tuple[str, ...] | None) -> None:
    tokens = Ragged.of(np.arange(1, 7), np.array([2, 0, 1, 3, 0]), "longest")
    (column,) = predictor(Sum(), (), arguments=names)([tokens])
    assert column.to_pylist() == [3, 2000, 2003, 15, 1000]  # two rows a batch


def test_outputs_as_long_as_the_padding_ask_for_a_fixed_one(predictor: MakePredictor) -> None:
    tokens = Ragged.of(np.arange(1, 7), np.array([2, 0, 1, 3, 0]), "longest")

    class Same(nn.Module):
        def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
            return tokens

    with pytest.raises(DataError, match=r"of shape \(3,\) here, and of shape \(2,\) elsewhere; .* pad=n"):
        predictor(Same(), (2,))([tokens])


def test_a_model_that_reduces_over_the_batch_or_gives_more_outputs(predictor: MakePredictor) -> None:
    class Total(nn.Module):
        def forward(self, rows: Tensor) -> Tensor:
            return rows.sum(0)

    with pytest.raises(DataError, match=r"a row for each of a batch's 1 rows, and gives shape \(2,\)"):
        predictor(Total(), (2,))([ROWS[:1]])
    with pytest.raises(DataError, match="the model gives 2 outputs, and prediction_type='classification' reads 1"):
        predictor(Counted(), prediction_type="classification")([ROWS])


def test_a_batch_passes_the_user_s_transform(predictor: MakePredictor) -> None:
    def double(inputs: Any, labels: Any, training: bool) -> Any:
        assert not training
        return {"rows": inputs["x"] * 2}, labels

    class Rows(nn.Module):
        def forward(self, rows: Tensor) -> Tensor:
            return rows

    (column,) = predictor(Rows(), (2,), transform_batch=double, arguments=("x",))([ROWS])
    assert column.to_pylist() == (ROWS * 2).tolist()


def test_without_a_gpu_the_task_s_address_changes_nothing(
    predictor: MakePredictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(predict, "task_gpus", lambda: ("0",))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    predictor(nn.Linear(2, 1), (1,))([ROWS])
    assert [one.seat.device.type for one in predict._models.values()] == ["cpu"]


@pytest.mark.parametrize("shape", [(1,), ()])
def test_regression_gives_doubles(predictor: MakePredictor, shape: tuple[int, ...]) -> None:
    net = nn.Sequential(nn.Linear(2, 1), *([nn.Flatten(0)] if shape == () else []))
    (column,) = predictor(net, shape, prediction_type="regression")([ROWS])
    assert column.type == pa.float64()
    np.testing.assert_allclose(column.to_pylist(), net(torch.from_numpy(ROWS)).flatten().tolist(), rtol=1e-6)


def test_classification_gives_spark_s_three_columns(predictor: MakePredictor) -> None:
    net = nn.Linear(2, 3)
    raw, probability, prediction = predictor(net, (3,), prediction_type="classification")([ROWS])
    logits = net(torch.from_numpy(ROWS))
    np.testing.assert_allclose([row["values"] for row in raw.to_pylist()], logits.tolist(), rtol=1e-5)
    np.testing.assert_allclose([sum(row["values"]) for row in probability.to_pylist()], [1.0] * 5)
    assert prediction.to_pylist() == logits.argmax(1).double().tolist()


def test_a_model_is_loaded_once_and_only_few_are_kept(
    predictor: MakePredictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads: list[str] = []
    load = bundle.tensors_from_file
    monkeypatch.setattr(bundle, "tensors_from_file", lambda path: loads.append(path) or load(path))
    most = predict.CACHED_MODELS
    first, second, *others = [predictor(nn.Linear(2, width), (width,)) for width in range(1, most + 2)]
    for one in (first, first, second, *others[:-1]):
        one([ROWS])
    assert len(loads) == most
    first([ROWS])
    others[-1]([ROWS])  # one too many
    first([ROWS])
    assert (len(loads), len(predict._models)) == (most + 1, most)
    second([ROWS])
    assert len(loads) == most + 2, "the one longest unused was dropped"
