"""Keras: where a domain is claimed nothing else arrives, and else a layer is named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_keras_file import dense_after, keras, layers, randomised, saved  # it sets up Keras

from uncork.domain import Box, RMSNorm
from uncork.loading import AmbiguousError, find

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
FORMATS = ["keras", "h5"]
GENERATOR = np.random.default_rng(0)


def arriving(model: keras.Model, scale: float = 30.0) -> np.ndarray:
    """What the model really gives its head for random inputs."""
    x = GENERATOR.normal(scale=scale, size=(64, *model.input_shape[1:])).astype(np.float32)
    return np.asarray(keras.ops.convert_to_numpy(model.hidden(x)), np.float64)


def nothing_is_known(path: Path, layer: str) -> None:
    found = find(path, domain="auto")
    assert found.shown_domain is None
    assert layer in found.domain_from
    assert found.head.domain == Box(100)


@keras.saving.register_keras_serializable(package="mine")
class Turned(layers.ReLU):
    def call(self, inputs: Any) -> Any:
        return -super().call(inputs)


Turned.__name__ = "ReLU"


@keras.saving.register_keras_serializable(package="mine")
def relu(x: Any) -> Any:
    return -x


class OwnDense(layers.Dense):
    pass


OwnDense.__name__ = "Dense"


def training(layer: Any) -> Callable[[Any], Any]:
    return lambda x: layer(x, training=True)


def state_of(layer: Any, place: int) -> Callable[[Any], Any]:
    return lambda x: layer(x)[place]


UNKNOWN: dict[str, tuple[Callable[[], keras.Model], str]] = {
    "a class of the same name": (lambda: dense_after(layers.Dense(7), Turned()), "not Keras's own"),
    "a function of the same name": (
        lambda: dense_after(layers.Dense(7, activation=relu)), "not Keras's own",
    ),
    "a layer as the activation": (
        lambda: dense_after(layers.Dense(7, activation=layers.LeakyReLU())), "not Keras's own",
    ),
    "a gate below zero": (
        lambda: dense_after(layers.GRU(4, recurrent_activation="tanh"), shape=(9, 3)),
        "has the gate tanh",
    ),
    "another layer backwards": (
        lambda: dense_after(
            layers.Bidirectional(
                layers.LSTM(4), backward_layer=layers.GRU(4, activation="relu", go_backwards=True)
            ),
            shape=(9, 3),
        ),
        "runs GRU with relu",
    ),
    "the cell of an LSTM": (
        lambda: dense_after(state_of(layers.LSTM(4, return_state=True), 2), shape=(9, 3)),
        "result 2",
    ),
    "a norm pooled over its features": (
        lambda: dense_after(
            layers.LayerNormalization(),
            layers.GlobalAveragePooling1D(data_format="channels_first"),
            shape=(6, 6),
        ),
        "GlobalAveragePooling1D may average over the features",
    ),
    "a norm pooled over some features": (
        lambda: dense_after(
            layers.LayerNormalization(),
            layers.AveragePooling1D(3, 1, "same", data_format="channels_first"),
            shape=(4, 6),
        ),
        "AveragePooling1D may average over the features",
    ),
    "a norm with masked places": (
        lambda: dense_after(layers.LayerNormalization(), layers.Masking(), shape=(4, 6)),
        "Masking",
    ),
    "cubic interpolation": (
        lambda: dense_after(
            layers.ReLU(), layers.UpSampling2D(2, interpolation="bicubic"), shape=(4, 4, 2)
        ),
        "UpSampling2D 'up_sampling2d",
    ),
    "noise in training mode": (
        lambda: dense_after(layers.ReLU(), training(layers.GaussianNoise(0.9))),
        "GaussianNoise",
    ),
    "a norm of another axis": (
        lambda: dense_after(layers.LayerNormalization(axis=1), shape=(6, 6)),
        "normalises over axis",
    ),
    "a convolution with a gate of any size": (
        lambda: dense_after(
            layers.ConvLSTM1D(2, 3, recurrent_activation="relu"), shape=(3, 6, 2)
        ),
        "ConvLSTM1D",
    ),
    "a norm whose dropout is on": (
        lambda: dense_after(layers.LayerNormalization(), training(layers.Dropout(0.5))),
        "is in training mode",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_no_rule_knows_ends_the_search_and_is_named(tmp_path: Path, name: str) -> None:
    build, layer = UNKNOWN[name]
    nothing_is_known(saved(build(), tmp_path, "keras"), layer)


def test_a_class_that_its_author_registered_is_seen_in_a_legacy_file_too(tmp_path: Path) -> None:
    model = dense_after(layers.Dense(7), Turned())
    nothing_is_known(saved(model, tmp_path, "h5"), "not Keras's own")


def test_a_state_to_begin_with_can_be_anything(tmp_path: Path) -> None:
    inputs, start = keras.Input((9, 3)), keras.Input((4,))
    hidden = layers.GRU(4)(inputs, initial_state=start)
    model = keras.Model([inputs, start], layers.Dense(5)(hidden))
    nothing_is_known(saved(model, tmp_path, "keras"), "a state to begin with")


@pytest.mark.parametrize("form", FORMATS)
def test_dropout_that_is_always_on_widens_the_range(tmp_path: Path, form: str) -> None:
    model = dense_after(layers.Dense(7, activation="tanh"), training(layers.Dropout(0.5)))
    found = find(saved(model, tmp_path, form), domain="auto").head.domain
    hidden = arriving(model)
    assert np.abs(hidden).max() > 1.9
    assert found.contains(hidden).all()
    # A model called in training mode hands that on to its layers.
    inner = keras.Sequential([keras.Input((6,)), layers.Activation("tanh"), layers.Dropout(0.5)])
    model = dense_after(training(inner))
    found = find(saved(model, tmp_path, form), domain="auto").head.domain
    hidden = arriving(model)
    assert np.abs(hidden).max() > 1.9
    assert found.contains(hidden).all()


def test_a_head_of_another_class_is_none(tmp_path: Path) -> None:
    model = keras.Sequential([keras.Input((6,)), layers.ReLU(), OwnDense(5)])
    with pytest.raises(AmbiguousError, match="not Keras's own"):
        find(saved(model, tmp_path, "keras"))


def test_a_legacy_file_says_that_it_does_not_name_modules(tmp_path: Path) -> None:
    model = dense_after(layers.Dense(7, activation="relu"))
    for form in FORMATS:
        shown = find(saved(model, tmp_path, form), domain="auto").shown_domain
        assert shown is not None
        assert ("Keras's own" in shown.assumed) == (form == "h5")


def test_a_head_used_twice_is_given_either(tmp_path: Path) -> None:
    inputs = keras.Input((6,))
    head = layers.Dense(5)
    model = keras.Model(inputs, [head(layers.ReLU()(inputs)), head(layers.Dense(6)(inputs))])
    nothing_is_known(saved(model, tmp_path, "keras"), "is used 2 times")


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_what_16_bits_make_of_a_minimum_lies_in_the_domain(tmp_path: Path, policy: str) -> None:
    for name in ("silu", "gelu", "mish", "tanh", "sigmoid"):
        model = dense_after(layers.Activation(name, dtype=policy))
        found = find(saved(model, tmp_path, "keras"), domain="auto").head.domain
        x = np.linspace(-2, 0, 6 * 500).reshape(-1, 6).astype(np.float32)
        hidden = np.asarray(keras.ops.convert_to_numpy(model.hidden(x)), np.float64)
        assert found.contains(hidden).all()


def test_what_leaves_an_rms_norm_lies_in_its_domain_exactly(tmp_path: Path) -> None:
    model = dense_after(layers.RMSNormalization(), layers.GlobalAveragePooling1D(), shape=(3, 6))
    shown = find(saved(model, tmp_path, "keras"), domain="auto").shown_domain
    assert shown is not None
    assert isinstance(shown.domain, RMSNorm)
    for scale in (1e-20, 1.0, 1e15):
        assert shown.domain.contains(arriving(model, scale)).all()


@pytest.mark.parametrize(
    ("after", "doubt"),
    [
        (layers.Softmax(axis=1), "along axis 1, not over the classes"),
        (layers.Softmax(axis=2), ""),
        (layers.Softmax(), ""),
        (training(layers.Dropout(0.5)), "drops scores"),
        (layers.Dropout(0.5), ""),
    ],
)
def test_what_follows_the_head_keeps_the_classes_in_order_or_is_a_doubt(
    tmp_path: Path, after: Any, doubt: str
) -> None:
    inputs = keras.Input((4, 6))
    model = randomised(keras.Model(inputs, after(layers.Dense(5)(inputs))))
    doubts = find(saved(model, tmp_path, "keras")).contents.choose().doubts
    assert doubt in " ".join(doubts)
    assert bool(doubts) == bool(doubt)


def test_what_turns_the_scores_round_is_refused_or_a_doubt(tmp_path: Path) -> None:
    inputs = keras.Input((6,))
    scores = layers.Dense(5, activation="softmax")(inputs)
    for after in (lambda x: 1 - x, lambda x: -x, lambda x: x * x, Turned()):
        with pytest.raises(AmbiguousError, match="not in a Dense layer"):
            find(saved(keras.Model(inputs, after(scores)), tmp_path, "keras"))
    model = keras.Model(inputs, layers.Dense(5, activation=relu)(inputs))
    (doubt,) = find(saved(model, tmp_path, "keras")).contents.choose().doubts
    assert "change their order" in doubt
