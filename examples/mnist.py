"""Train a small CNN on MNIST digits with two processes inside a local Spark, and keep the result.

    python examples/mnist.py --output demo-output

trains on 8,000 digits, measures the accuracy on 2,000 others, saves the model, loads it back, checks that
it predicts the same, and draws the learning curve.
"""

import argparse
import sys
from functools import partial
from pathlib import Path

import matplotlib
import torch
from pyspark.ml.evaluation import MulticlassClassificationEvaluator
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from torch import Tensor, nn
from torch.optim.lr_scheduler import ExponentialLR

from sparktrain.torch import TorchEstimator, TorchModel

matplotlib.use("Agg")
from matplotlib import pyplot as plt

DATA = Path(__file__).resolve().parents[1] / "data" / "mnist10k.parquet"
TRAIN_ROWS = 8_000
REQUIRED_ACCURACY = 0.96

Epoch = dict[str, float]


class DigitNet(nn.Module):
    """Two convolutions and two dense layers; 421,642 weights."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 32, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Sequential(
            nn.Flatten(),
            nn.Dropout(0.25),
            nn.Linear(64 * 7 * 7, 128),
            nn.ReLU(),
            nn.Linear(128, 10),
        )

    def forward(self, image: Tensor) -> Tensor:
        """image : uint8, shape (batch, 1, 28, 28) -> logits : float32, shape (batch, 10)"""
        return self.classifier(self.features(image.float() / 255))


def accuracy(output: Tensor, target: Tensor) -> Tensor:
    """The share of rows whose largest logit is the right digit."""
    return (output.argmax(dim=1) == target).float().mean()


def local_spark(num_proc: int) -> SparkSession:
    """A Spark on this machine with one slot for each of the `num_proc` processes that train together."""
    spark = (
        SparkSession.builder.master(f"local[{num_proc}]")
        .appName("sparktrain-mnist")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")  # Spark's bar would overwrite ours
        .config("spark.sql.shuffle.partitions", str(num_proc))
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("WARN")
    return spark


def read_digits(spark: SparkSession) -> tuple[DataFrame, DataFrame]:
    """The first 8,000 digits of the file to train on and the other 2,000 to test with."""
    digits = spark.read.parquet(str(DATA)).select("image", "label", F.col("_metadata.row_index").alias("row"))
    return digits.where(F.col("row") < TRAIN_ROWS), digits.where(F.col("row") >= TRAIN_ROWS)


def train_model(train: DataFrame, num_proc: int, epochs: int) -> TorchModel:
    net = DigitNet()
    estimator = TorchEstimator(
        model=net,
        optimizer=torch.optim.Adam(net.parameters(), lr=2e-3),
        loss=nn.CrossEntropyLoss(),
        metrics={"accuracy": accuracy},
        lr_scheduler=partial(ExponentialLR, gamma=0.7),
        feature_cols=["image"],
        label_cols=["label"],
        feature_shapes={"image": (1, 28, 28)},
        feature_dtypes={"image": "uint8"},
        prediction_type="classification",
        validation=0.1,
        batch_size=32,
        epochs=epochs,
        num_proc=num_proc,
        seed=7,
    )
    return estimator.fit(train)


def print_history(history: list[Epoch]) -> None:
    columns = ["loss", "accuracy", "val_loss", "val_accuracy", "lr", "rows_per_s", "seconds"]
    decimals = {"lr": 6, "rows_per_s": 0, "seconds": 1}
    print("epoch" + "".join(f"{name:>14}" for name in columns))
    for epoch in history:
        values = "".join(f"{epoch[name]:>14.{decimals.get(name, 4)}f}" for name in columns)
        print(f"{epoch['epoch']:>5}{values}")


def plot_history(history: list[Epoch], path: Path) -> None:
    figure, panels = plt.subplots(1, 2, figsize=(11, 4.5), layout="constrained")
    epochs = [epoch["epoch"] for epoch in history]
    for panel, name in zip(panels, ("loss", "accuracy"), strict=True):
        panel.plot(epochs, [epoch[name] for epoch in history], marker="o", label="train")
        panel.plot(epochs, [epoch[f"val_{name}"] for epoch in history], marker="s", label="validation")
        panel.set(title=name.capitalize(), xlabel="epoch", ylabel=name, xticks=epochs)
        panel.grid(alpha=0.3)
        panel.legend(loc="center right")
    figure.suptitle("sparktrain: a CNN on 8,000 MNIST digits")
    figure.savefig(path, dpi=150)
    plt.close(figure)


def predicted_digits(predictions: DataFrame) -> dict[int, float]:
    """Row -> predicted digit."""
    return {row: digit for row, digit in predictions.select("row", "prediction").collect()}


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("demo-output"), help="folder for model and plot")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--num-proc", type=int, default=2, help="how many processes train together")
    return parser.parse_args()


def main() -> int:
    args = parse_args()
    output: Path = args.output.resolve()
    output.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(7)  # the net's first weights

    print(f"==> Starting Spark with {args.num_proc} slots")
    spark = local_spark(args.num_proc)
    train, test = read_digits(spark)

    print(f"==> Training a CNN on {TRAIN_ROWS:,} digits: {args.num_proc} processes, {args.epochs} epochs")
    model = train_model(train, args.num_proc, args.epochs)
    print_history(model.history)
    plot_history(model.history, output / "learning-curve.png")
    print(f"==> Drew {output / 'learning-curve.png'}")

    predictions = model.transform(test).cache()
    print(f"==> Classified {predictions.count():,} held-out digits")
    evaluator = MulticlassClassificationEvaluator(labelCol="label", metricName="accuracy")
    test_accuracy = evaluator.evaluate(predictions)

    path = str(output / "model")
    model.write().overwrite().save(path)
    # DigitNet is a class of this very script, so its code is stored with the model: loading it takes consent.
    loaded = TorchModel.load(path, trust=True)
    same = predicted_digits(loaded.transform(test)) == predicted_digits(predictions)
    spark.stop()

    print(f"==> Saved the model to {path} and loaded it: {'the same' if same else 'OTHER'} predictions")
    if not same:
        print("error: the loaded model predicts other digits than the trained one", file=sys.stderr)
    if test_accuracy < REQUIRED_ACCURACY:
        print(f"error: a test accuracy of {REQUIRED_ACCURACY} was expected at least", file=sys.stderr)
    sys.stderr.flush()
    print(f"test accuracy: {test_accuracy:.4f}")
    return 0 if same and test_accuracy >= REQUIRED_ACCURACY else 1


if __name__ == "__main__":
    sys.exit(main())
