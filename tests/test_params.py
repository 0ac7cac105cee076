"""One declaration a knob: keywords, Spark ML Params, accessors and checks all come from it."""

import inspect
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from pyspark.ml.base import Transformer
from pyspark.ml.tuning import ParamGridBuilder
from torch import nn

from sparktrain import params
from sparktrain.errors import ParamError
from sparktrain.params import GangParam, KeywordParams
from sparktrain.torch import TorchEstimator


class HasHeat(KeywordParams):
    toastSlots = GangParam("toast_slots", "Slices at a time.", params.integer(1), 2, aliases=("num_slices",))
    browning = GangParam("browning", "How dark.", params.one_of("light", "dark"), None)


class Toaster(HasHeat):
    """Toasts."""

    breadCol = GangParam("bread_col", "Where the bread is.", params.string)
    recipe = GangParam("recipe", "What to make.", params.function, None, by_value=True)


def test_defaults_and_keywords() -> None:
    toaster = Toaster(bread_col="bread")
    assert toaster.getBreadCol() == "bread"
    assert toaster.getToastSlots() == 2
    assert toaster.getBrowning() is None
    assert [toaster.isSet(name) for name in ("breadCol", "toastSlots", "browning")] == [True, False, False]


def test_the_params_are_spark_ml_params() -> None:
    assert [param.name for param in Toaster().params] == ["breadCol", "browning", "recipe", "toastSlots"]
    first, second = Toaster(), Toaster()
    assert first.breadCol != second.breadCol, "each instance owns its Params"
    assert first.breadCol.parent == first.uid


def test_accessors_are_generated_and_chain() -> None:
    toaster = Toaster().setToastSlots(4).setBreadCol("rye")
    assert isinstance(toaster, Toaster)
    assert (toaster.getToastSlots(), toaster.getBreadCol()) == (4, "rye")
    with pytest.raises(ParamError, match="toast_slots"):
        toaster.setToastSlots(0)


@pytest.mark.parametrize("keyword", ["toast_slots", "toastSlots", "num_slices"])
def test_every_spelling_sets_the_same_param(keyword: str) -> None:
    assert Toaster(**{keyword: 3}).getToastSlots() == 3
    assert Toaster().setParams(**{keyword: 3}).getToastSlots() == 3


@pytest.mark.parametrize("pair", [("toast_slots", "num_slices"), ("toastSlots", "toast_slots")])
def test_two_spellings_at_once_are_an_error(pair: tuple[str, str]) -> None:
    with pytest.raises(ParamError, match=f"{pair[1]} and {pair[0]} are the same parameter"):
        Toaster(**dict.fromkeys(pair, 3))


@pytest.mark.parametrize(
    ("keyword", "hint"),
    [
        ("toast_slot", "did you mean 'toast_slots'"),
        ("numSlice", "did you mean 'num_slices'"),
        ("zz", "known: .*recipe"),
    ],
)
def test_an_unknown_keyword_names_the_nearest(keyword: str, hint: str) -> None:
    with pytest.raises(ParamError, match=f"Toaster has no parameter '{keyword}'; {hint}"):
        Toaster(**{keyword: 1})


def test_none_leaves_a_param_as_it_is() -> None:
    toaster = Toaster(bread_col=None, toast_slots=None)
    assert not toaster.isSet("toastSlots")
    assert not toaster.isDefined("breadCol")
    assert toaster.setParams(toast_slots=5).setParams(toast_slots=None).getToastSlots() == 5


def test_a_param_without_value_says_what_it_is() -> None:
    toaster = Toaster()
    with pytest.raises(ParamError, match=r"Toaster needs bread_col: Where the bread is\."):
        toaster._value(toaster.breadCol)


def test_a_param_map_is_checked() -> None:
    toaster = Toaster()
    with pytest.raises(ParamError, match="toast_slots: expected a whole number of at least 1, got 0"):
        toaster.copy({toaster.toastSlots: 0})


def test_a_value_that_slipped_past_the_checks_is_checked_when_used() -> None:
    toaster = Toaster().setToastSlots(None)  # Spark ML stores None without asking the converter
    with pytest.raises(ParamError, match=r"toast_slots: expected a whole number of at least 1, got None"):
        toaster._value(toaster.toastSlots)


def test_the_documentation_comes_from_the_declarations() -> None:
    signature = inspect.signature(Toaster)
    assert list(signature.parameters) == ["bread_col", "browning", "recipe", "toast_slots"]
    assert signature.parameters["toast_slots"].default == 2
    assert all(p.kind is inspect.Parameter.KEYWORD_ONLY for p in signature.parameters.values())
    assert "toast_slots, also num_slices, default 2\n    Slices at a time." in inspect.cleandoc(Toaster.__doc__ or "")
    assert Toaster.setToastSlots.__doc__ == "Set ``toast_slots``: Slices at a time."


def test_a_subclass_inherits_and_overrides() -> None:
    class Grill(Toaster):
        toastSlots = GangParam("toast_slots", "Slices at a time.", params.integer(1), 8)

    assert Grill().getToastSlots() == 8
    assert Toaster().getToastSlots() == 2
    assert Grill(bread_col="rye").getBreadCol() == "rye"


@pytest.mark.parametrize(
    ("convert", "given", "stored"),
    [
        (params.integer(0), 0, 0),
        (params.number(above=0), 3, 3.0),
        (params.number(at_least=0), 0, 0.0),
        (params.boolean, False, False),
        (params.string, "a", "a"),
        (params.one_of("a", "b"), "b", "b"),
        (params.column_names, "x", ["x"]),
        (params.column_names, ("x", "y"), ["x", "y"]),
        (params.column_groups, ["x", ("y", "z")], ["x", ["y", "z"]]),
        (params.mapping(params.integer(1)), {"a": 2}, {"a": 2}),
        (params.shape, 784, (784,)),
        (params.shape, [1, 28, 28], (1, 28, 28)),
        (params.dtype_name, "float64", "float64"),
        (params.dtype_name, float, "float64"),
        (params.dtype_name, "u1", "uint8"),
        (params.fraction_or_column, 0.25, 0.25),
        (params.fraction_or_column, "held_out", "held_out"),
        (params.numbers, [1, 0.5], [1.0, 0.5]),
    ],
)
def test_converters_store(convert: params.Convert, given: Any, stored: Any) -> None:
    assert convert(given) == stored
    assert type(convert(given)) is type(stored)


@pytest.mark.parametrize(
    ("convert", "given"),
    [
        (params.integer(1), 0),
        (params.integer(1), 1.0),
        (params.integer(0), True),
        (params.integer(1), "3"),
        (params.number(above=0), 0),
        (params.number(above=0), float("inf")),
        (params.number(at_least=0), float("nan")),
        (params.number(at_least=0), "1"),
        (params.number(at_least=0), True),
        (params.boolean, 1),
        (params.string, ""),
        (params.one_of("a", "b"), "c"),
        (params.column_names, []),
        (params.column_names, ["x", 3]),
        (params.column_groups, [["x", 3]]),
        (params.mapping(params.string), ["x"]),
        (params.mapping(params.string), {"x": 3}),
        (params.shape, (0, 3)),
        (params.shape, ()),
        (params.dtype_name, "str"),
        (params.dtype_name, "no such"),
        (params.fraction_or_column, 0.0),
        (params.fraction_or_column, 1),
        (params.fraction_or_column, True),
        (params.function, "relu"),
        (params.numbers, [1, "2"]),
        (params.numbers, []),
    ],
)
def test_converters_refuse(convert: params.Convert, given: Any) -> None:
    with pytest.raises(ValueError, match=r"^(an? |one of |True or False)"):
        convert(given)


# The real estimator


def test_the_estimator_takes_the_field_s_keywords() -> None:
    net = nn.Linear(2, 1)
    estimator = TorchEstimator(
        model=net, loss=nn.MSELoss(), feature_cols=["x"], label_cols="y", num_proc=2, batch_size=64, validation=0.1
    )
    assert estimator.getModel() is net
    assert estimator.getLabelCols() == ["y"]
    assert (estimator.getNumProc(), estimator.getBatchSize(), estimator.getEpochs()) == (2, 64, 1)


def test_the_estimator_s_unknown_keyword() -> None:
    with pytest.raises(ParamError, match="TorchEstimator has no parameter 'num_procs'; did you mean 'num_proc'"):
        TorchEstimator(num_procs=2)


def test_num_workers_is_num_proc() -> None:
    assert TorchEstimator(num_workers=3).getNumProc() == 3
    with pytest.raises(ParamError, match="num_proc and num_workers are the same parameter"):
        TorchEstimator(num_workers=3, num_proc=3)


@pytest.mark.parametrize(
    ("keyword", "value", "expected", "got"),
    [
        ("batch_size", "64", "a whole number of at least 1", r"'64' \(str\)"),
        ("epochs", 0, "a whole number of at least 1", r"0 \(int\)"),
        ("shuffle", "yes", r"'local' \(or True\), 'global' or False", r"'yes' \(str\)"),
        ("validation", 1.5, "a fraction between 0 and 1, or the name of a boolean column", r"1.5 \(float\)"),
        ("model", "resnet", "a torch.nn.Module instance", r"'resnet' \(str\)"),
        ("optimizer", "adam", "a torch.optim.Optimizer", r"'adam' \(str\)"),
        ("loss", ["mse"], "a callable", r"\['mse'\] \(list\)"),
        ("metrics", {"mae": 1}, "callables metric", r"\{'mae': 1\} \(dict\)"),
        ("prediction_type", "classes", "one of 'raw', 'regression', 'classification'", r"'classes' \(str\)"),
        ("feature_dtypes", {"x": "text"}, "a NumPy dtype name", r"\{'x': 'text'\} \(dict\)"),
    ],
)
def test_a_wrong_value_names_keyword_expectation_and_value(keyword: str, value: Any, expected: str, got: str) -> None:
    with pytest.raises(ParamError, match=f"^{keyword}: expected {expected}.*, got {got}"):
        TorchEstimator(**{keyword: value})


def test_a_model_class_in_place_of_an_instance() -> None:
    with pytest.raises(ParamError, match=r"model: expected a torch\.nn\.Module instance"):
        TorchEstimator(model=nn.Linear)


def test_copy_with_extra_leaves_the_original() -> None:
    estimator = TorchEstimator(model=nn.Linear(2, 1), epochs=2)
    copied = estimator.copy({estimator.epochs: 7})
    assert (copied.getEpochs(), estimator.getEpochs()) == (7, 2)
    assert copied.getModel() is estimator.getModel()


def test_explain_params_tells_of_every_keyword() -> None:
    lines = TorchEstimator(epochs=2).explainParams().splitlines()
    names = [line.partition(":")[0] for line in lines]
    keywords = inspect.signature(TorchEstimator).parameters
    assert sorted(names) == sorted(params.camel_case(keyword) for keyword in keywords)
    assert any(line.startswith("epochs:") and "(default: 1, current: 2)" in line for line in lines)


def test_a_param_grid_checks_and_converts_its_values() -> None:
    estimator = TorchEstimator(model=nn.Linear(2, 1))
    grid = ParamGridBuilder().addGrid(estimator.batchSize, [32, 64]).addGrid(estimator.labelCols, ["y"]).build()
    assert [(point[estimator.batchSize], point[estimator.labelCols]) for point in grid] == [(32, ["y"]), (64, ["y"])]
    with pytest.raises(ParamError, match="batch_size: expected"):
        ParamGridBuilder().addGrid(estimator.batchSize, [0]).build()


def test_a_grid_over_objects_holds_them_and_the_estimator_takes_them_out() -> None:
    estimator = TorchEstimator(model=nn.Linear(2, 1), lr_scheduler=None)
    loss, metrics, optimizer = nn.L1Loss(), {"mae": F.l1_loss}, partial(torch.optim.SGD, lr=0.5)
    grid = (
        ParamGridBuilder()
        .addGrid(estimator.loss, [loss])
        .addGrid(estimator.metrics, [metrics])
        .addGrid(estimator.optimizer, [optimizer])
        .addGrid(estimator.lrScheduler, [None])
        .build()
    )
    (point,) = grid
    assert all(isinstance(point[param], Transformer) for param in point if param != estimator.lrScheduler)
    assert repr(point[estimator.optimizer]) == repr(optimizer)
    assert point[estimator.loss](torch.ones(1), torch.zeros(1)) == 1
    assert point[estimator.optimizer].value is optimizer
    assert point[estimator.lrScheduler] is None

    copied = estimator.copy(point)
    assert copied.getLoss() is loss
    assert copied.getOptimizer() is optimizer
    assert copied.getMetrics() == metrics
    assert copied._value(copied.loss) is loss
    assert estimator.extractParamMap(point)[estimator.loss] is loss
    copied.set(copied.loss, point[estimator.loss])
    assert copied.setLoss(point[estimator.loss]).getLoss() is loss
    assert not [value for value in copied.extractParamMap().values() if isinstance(value, params.Holder)]
    with pytest.raises(ParamError, match="loss: expected a callable"):
        ParamGridBuilder().addGrid(estimator.loss, ["mse"]).build()


def test_the_signature_lists_the_required_first() -> None:
    parameters = inspect.signature(TorchEstimator).parameters
    assert {"model", "optimizer", "loss", "feature_cols", "label_cols", "num_proc", "batch_size"} <= set(parameters)
    assert "num_workers" not in parameters, "an alias, not a second knob"
    defaults = [parameter.default for parameter in parameters.values()]
    assert parameters["batch_size"].default == 32
    assert defaults[:5] == [None] * 5
