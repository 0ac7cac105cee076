"""Models for the tests; in a module, so that other processes import them."""

from __future__ import annotations

from typing import Any

import keras


class Pair(keras.Model):
    """A subclass with two outputs, by name; Keras can't save it: it doesn't know its argument."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.hidden = keras.layers.Dense(hidden, activation="relu")
        self.value = keras.layers.Dense(1)

    def call(self, rows: Any) -> dict[str, Any]:
        hidden = self.hidden(rows)
        return {"value": self.value(hidden), "hidden": hidden}


class Plus(keras.layers.Layer):
    """A user's layer with a config."""

    def __init__(self, added: float, **keywords: Any) -> None:
        super().__init__(**keywords)
        self.added = added

    def call(self, rows: Any) -> Any:
        return rows + self.added

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "added": self.added}


class Activated(keras.layers.Layer):
    """Looks its activation up by name, at each call."""

    def __init__(self, activation: str, **keywords: Any) -> None:
        super().__init__(**keywords)
        self.name_of_activation = activation

    def call(self, rows: Any) -> Any:
        return keras.saving.get_registered_object(self.name_of_activation)(rows)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "activation": self.name_of_activation}


class Traced(keras.layers.Layer):
    """Counts how often it is called by Python."""

    traces = 0

    def call(self, rows: Any) -> Any:
        Traced.traces += 1
        return rows


def dense(outputs: int, activation: str | None = None) -> keras.Sequential:
    layers = [keras.Input((4,)), keras.layers.Dropout(0.9), keras.layers.Dense(outputs, activation=activation)]
    return keras.Sequential(layers)


def towers(form: str = "list") -> keras.Model:
    """An embedded item, shape (), and a context, shape (3,), in; classes and a value out."""
    item, context = keras.Input((), dtype="int32", name="item"), keras.Input((3,), name="context")
    joined = keras.layers.Concatenate()([keras.layers.Embedding(10, 4)(item), context])
    joined = keras.layers.BatchNormalization()(joined)
    classes, value = keras.layers.Dense(3, activation="softmax")(joined), keras.layers.Dense(1)(joined)
    if form == "dict":
        return keras.Model({"item": item, "context": context}, {"value": value, "classes": classes})
    return keras.Model([item, context], [classes, value])
