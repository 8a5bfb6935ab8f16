"""Random Keras models: every class with a rule, its settings and calls, saved in both formats.

python -m fuzz_domains.keras_models --count 1000 --seed 0
"""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

if "KERAS_HOME" not in os.environ:  # before Keras looks, and without its settings file
    os.environ["KERAS_BACKEND"] = "torch"
    os.environ["KERAS_HOME"] = tempfile.mkdtemp(prefix="keras-")
    atexit.register(shutil.rmtree, os.environ["KERAS_HOME"], True)

import keras
import numpy as np
from keras import layers

from uncork.core.errors import UncorkError
from uncork.domain import LayerNorm
from uncork.loading import find

from .hill_climbing import Figures, climb, command, outside, starts, turned_round

_CLASSES = 4
_FUNCTIONS = [
    "relu", "relu6", "tanh", "sigmoid", "silu", "gelu", "mish", "selu", "elu", "celu", "softplus",
    "softsign", "exponential", "hard_tanh", "hard_sigmoid", "hard_silu", "softmax", "log_softmax",
    "log_sigmoid", "leaky_relu", "squareplus", "sparsemax",
]  # fmt: skip


@keras.saving.register_keras_serializable(package="fuzz")
class Shifted(layers.ReLU):
    """Saved under the name of one of Keras's own classes."""

    def call(self, inputs: Any) -> Any:
        return super().call(inputs) - 2


Shifted.__name__ = "ReLU"


@keras.saving.register_keras_serializable(package="fuzz")
def relu(x: Any) -> Any:
    return x - 2


def _recurrent(rng: np.random.Generator, **settings: Any) -> Any:
    kind = [layers.LSTM, layers.GRU, layers.SimpleRNN][int(rng.integers(3))]
    if kind is not layers.SimpleRNN:
        gates = ["sigmoid", "sigmoid", "hard_sigmoid", "tanh", "relu"]
        settings["recurrent_activation"] = str(rng.choice(gates))
    states = ["tanh", "tanh", "sigmoid", "softsign", "relu", "hard_tanh"]
    return kind(3, activation=str(rng.choice(states)), **settings)


def _makers(rng: np.random.Generator, shape: tuple[int, ...]) -> list[Callable[[], Any]]:
    """What can follow a value of that shape (without the batch)."""
    flag, number = bool(rng.random() < 0.5), float(rng.uniform(0, 3))
    form = str(rng.choice(["channels_last", "channels_first"]))
    name = str(rng.choice(_FUNCTIONS))
    padding = str(rng.choice(["same", "valid"]))
    makers: list[Callable[[], Any]] = [
        lambda: layers.Dense(6, activation=name), lambda: layers.Activation(name),
        lambda: layers.Activation(name), lambda: layers.Dense(5, activation=relu),
        lambda: layers.ReLU(max_value=number if flag else None),
        lambda: layers.ReLU(threshold=number if flag else 0.0), lambda: Shifted(),
        lambda: layers.ELU(number), lambda: layers.Softmax(axis=-1 if flag else 1),
        lambda: layers.LayerNormalization(scale=flag),
        lambda: layers.LayerNormalization(center=flag),
        lambda: layers.LayerNormalization(axis=1), lambda: layers.RMSNormalization(),
        lambda: layers.UnitNormalization(axis=-1 if flag else 1), lambda: layers.Identity(),
        lambda: layers.Dropout(0.4), lambda: layers.AlphaDropout(0.4),
        lambda: layers.GaussianNoise(0.9), lambda: layers.Flatten(), lambda: layers.LeakyReLU(),
        lambda: layers.Masking(), lambda: layers.BatchNormalization(),
        lambda: layers.Activation(name, dtype="mixed_float16" if flag else "mixed_bfloat16"),
    ]  # fmt: skip
    if len(shape) == 2:
        makers += [
            lambda: _recurrent(rng, return_sequences=flag), lambda: _recurrent(rng),
            lambda: layers.Bidirectional(
                _recurrent(rng), merge_mode=str(rng.choice(["concat", "sum", "ave", "mul"]))
            ),
            lambda: layers.Bidirectional(
                layers.LSTM(3), backward_layer=_recurrent(rng, go_backwards=True)
            ),
            lambda: layers.GlobalAveragePooling1D(data_format=form),
            lambda: layers.GlobalMaxPooling1D(data_format=form),
            lambda: layers.AveragePooling1D(2, 1, padding, data_format=form),
            lambda: layers.MaxPooling1D(2, 1, padding), lambda: layers.Permute((2, 1)),
            lambda: layers.SpatialDropout1D(0.4), lambda: layers.Conv1D(5, 1, activation=name),
            lambda: layers.TimeDistributed(layers.LayerNormalization()),
            lambda: layers.ZeroPadding1D(1), lambda: layers.UpSampling1D(2),
        ]  # fmt: skip
    if len(shape) == 3:
        ways = ["nearest", "bilinear", "bicubic", "lanczos3"]
        makers += [
            lambda: layers.GlobalAveragePooling2D(data_format=form),
            lambda: layers.AveragePooling2D(2, 1, padding),
            lambda: layers.MaxPooling2D(2, 1, padding),
            lambda: layers.Conv2D(3, 2, activation=name), lambda: layers.Reshape((-1, shape[-1])),
            lambda: layers.UpSampling2D(2, interpolation=str(rng.choice(ways))),
            lambda: layers.DepthwiseConv2D(2, activation=name), lambda: layers.Cropping2D(1),
        ]  # fmt: skip
    return makers


def _model(rng: np.random.Generator) -> tuple[keras.Model, keras.Model]:
    """A model, and the same with what arrives at its head as an output too."""
    shapes = [(6,), (4, 6), (6, 6), (4, 4, 3)]
    inputs = keras.Input(shapes[int(rng.integers(len(shapes)))])
    values = [inputs]
    for _ in range(int(rng.integers(1, 5))):
        x = values[-1]
        try:
            if rng.random() < 0.1 and len(values) > 1:
                join = [layers.Concatenate, layers.Average, layers.Maximum, layers.Add]
                other = values[int(rng.integers(1, len(values)))]
                value = join[int(rng.integers(len(join)))]()([x, other])
            else:
                makers = _makers(rng, tuple(x.shape[1:]))
                layer = makers[int(rng.integers(len(makers)))]()
                noisy = "Drop" in type(layer).__name__ or "Noise" in type(layer).__name__
                if rng.random() < 0.1:
                    layer = keras.Sequential([keras.Input(x.shape[1:]), layer])
                value = layer(x, training=True) if noisy and rng.random() < 0.5 else layer(x)
        except (ValueError, RuntimeError, TypeError, IndexError):
            continue
        if 2 <= len(value.shape) <= 4 and None not in value.shape[1:] and 0 not in value.shape[1:]:
            values.append(value)
    hidden = values[-1]
    y = layers.Dense(_CLASSES, use_bias=bool(rng.random() < 0.5))(hidden)
    after: list[Any] = [
        layers.Softmax(), layers.Softmax(axis=1), layers.Activation("sigmoid"),
        layers.Activation("tanh"), layers.Dropout(0.5), lambda x: -x, layers.ReLU(), Shifted(),
    ]  # fmt: skip
    if rng.random() < 0.5:
        y = after[int(rng.integers(len(after)))](y)
    model = keras.Model(inputs, y)
    for variable in model.weights:
        if rng.random() < 0.8 and variable.dtype == "float32":
            variable.assign(rng.normal(size=variable.shape).astype(np.float32))
    return model, keras.Model(inputs, [hidden, y])


def run(count: int, seed: int) -> Figures:
    figures = Figures()
    logging.getLogger("absl").setLevel(logging.ERROR)  # .h5 is legacy, and says so each time
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number in range(count):
            rng = np.random.default_rng([seed, number])
            keras.utils.set_random_seed(int(rng.integers(1 << 31)))
            if number % 50 == 0:
                keras.backend.clear_session()
            _try(figures, rng, Path(folder), f"model {number} of seed {seed}")
    return figures


def _try(figures: Figures, rng: np.random.Generator, folder: Path, name: str) -> None:
    model, body = _model(rng)
    what = " → ".join(type(layer).__name__ for layer in model.layers)
    path = folder / f"m.{rng.choice(['keras', 'keras', 'h5'])}"
    try:
        model(np.zeros((2, *model.input_shape[1:]), np.float32))
    except (RuntimeError, ValueError):  # Keras builds what its torch backend cannot run
        return
    model.save(path)
    figures.models += 1
    try:
        found = find(path, domain="auto")
        doubts = found.contents.choose().doubts
    except UncorkError:
        figures.stopped["refused"] += 1
        return
    figures.doubtful += bool(doubts)
    output: list[np.ndarray] = []

    def arrive(x: np.ndarray) -> np.ndarray:
        hidden, *output[:] = (keras.ops.convert_to_numpy(value) for value in body(x))
        rows = np.asarray(hidden, np.float64)
        return rows.reshape(len(x), -1, rows.shape[-1])

    shape = tuple(model.input_shape[1:])
    shown = found.shown_domain
    if shown is not None:
        figures.known += 1
        figures.by[shown.why.partition(" ")[0]] += 1
        layer = isinstance(shown.domain, LayerNorm)  # said to be without rounding
        x = starts(rng, shape)
        if layer:
            x = rng.normal(size=x.shape).astype(np.float32)
        rows = climb(arrive, x, shown.domain, rng, 8)
        figures.inputs += len(rows)
        # A row whose mean is large beside its spread rounds far: what is looked for is structure.
        wrong = outside(rows, shown.domain, 0.1 if layer else 0.0)
        if len(wrong):
            figures.violations.append(f"{name}: {shown.why}, {shown.domain}: {wrong[0]}: {what}")
    else:
        figures.stopped[found.domain_from.partition("head (")[2].partition(" ")[0]] += 1
    if not doubts:
        x = rng.normal(size=(16, *shape)).astype(np.float32)
        rows = arrive(x).reshape(-1, found.head.features)
        logits = rows @ found.head.rows(0, _CLASSES).T + found.head.offsets
        scores = np.asarray(output[0], np.float64)
        if scores.size != logits.size or turned_round(logits, scores.reshape(logits.shape)):
            figures.violations.append(f"{name}: another order after the head: {what}")


if __name__ == "__main__":
    command(run)
