"""Keras: the head computes what the model computes, and what reaches it lies in the domain."""

from __future__ import annotations

import atexit
import io
import json
import logging
import os
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["KERAS_BACKEND"] = "torch"  # before Keras looks, and without its settings file
os.environ["KERAS_HOME"] = tempfile.mkdtemp(prefix="keras-")

import h5py
import keras
import numpy as np
import pytest
from keras import layers

from uncork import UncorkError
from uncork.domain import Box, LayerNorm, RMSNorm
from uncork.loading import AmbiguousError, find, load

atexit.register(shutil.rmtree, os.environ["KERAS_HOME"], True)
logging.getLogger("absl").setLevel(logging.ERROR)  # .h5 is legacy, and says so each time
# Keras itself asks torch for arrays in a way that NumPy 2 warns about.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
FORMATS = ["keras", "h5"]
GENERATOR = np.random.default_rng(0)


def dense_after(*before: Any, shape: tuple[int, ...] = (6,), classes: int = 5) -> keras.Model:
    """A functional model whose layers are not in the order of their names."""
    x = inputs = keras.Input(shape)
    for layer in before:
        x = layer(x)
    hidden = x
    x = layers.Dense(classes, name="a_head")(x)
    model = keras.Model(inputs, layers.Softmax(name="before_all")(x))
    model.hidden = keras.Model(inputs, hidden)
    return randomised(model)


def randomised(model: keras.Model) -> keras.Model:
    """Biases and gains are zeros and ones at first, which would hide mistakes."""
    for variable in model.weights:
        variable.assign(GENERATOR.normal(size=variable.shape).astype(np.float32))
    return model


def array(variable: Any) -> np.ndarray:
    return keras.ops.convert_to_numpy(variable)


def saved(model: keras.Model, folder: Path, form: str) -> Path:
    path = folder / f"m.{form}"
    model.save(path)
    return path


MODELS: dict[str, tuple[Callable[[], keras.Model], Any]] = {
    "relu": (lambda: dense_after(layers.Dense(7, activation="relu")), Box(0, np.inf)),
    "tanh through dropout": (
        lambda: dense_after(layers.Dense(7, activation="tanh"), layers.Dropout(0.5)),
        Box(-1, 1),
    ),
    "an activation layer": (
        lambda: dense_after(layers.Dense(7), layers.Activation("sigmoid")),
        Box(0, 1),
    ),
    "silu": (lambda: dense_after(layers.Dense(7, activation="silu")), Box(-0.27847, np.inf)),
    "gelu": (lambda: dense_after(layers.Dense(7, activation="gelu")), Box(-0.17005, np.inf)),
    "nothing": (lambda: dense_after(layers.Dense(7)), None),
    "the input": (lambda: dense_after(), None),
    "convolution and pooling": (
        lambda: dense_after(
            layers.Conv2D(4, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            shape=(8, 8, 2),
        ),
        Box(0, np.inf),
    ),
    "global pooling": (
        lambda: dense_after(
            layers.Conv2D(4, 3), layers.ReLU(6.0), layers.GlobalAveragePooling2D(), shape=(8, 8, 2)
        ),
        Box(0, 6),
    ),
    "batch normalisation": (
        lambda: dense_after(layers.Dense(7, activation="relu"), layers.BatchNormalization()),
        None,
    ),
    "layer normalisation": (
        lambda: dense_after(layers.Dense(7), layers.LayerNormalization()),
        LayerNorm,
    ),
    "layer normalisation and mean": (
        lambda: dense_after(
            layers.LayerNormalization(center=False), layers.GlobalAveragePooling1D(), shape=(9, 6)
        ),
        LayerNorm,
    ),
    "layer normalisation and maximum": (
        lambda: dense_after(layers.LayerNormalization(), layers.GlobalMaxPooling1D(), shape=(9, 6)),
        None,
    ),
    "rms normalisation": (lambda: dense_after(layers.RMSNormalization()), RMSNorm),
    "an LSTM both ways": (
        lambda: dense_after(layers.Bidirectional(layers.LSTM(4)), shape=(9, 3)),
        Box(-1, 1),
    ),
    "a GRU": (lambda: dense_after(layers.GRU(4), shape=(9, 3)), Box(-1, 1)),
}


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("name", MODELS)
def test_the_head_computes_what_the_model_computes(tmp_path: Path, name: str, form: str) -> None:
    build, domain = MODELS[name]
    model = build()
    found = find(saved(model, tmp_path, form), domain="auto")
    head = found.head
    x = GENERATOR.normal(scale=3.0, size=(40, *model.input_shape[1:])).astype(np.float32)
    hidden = np.asarray(keras.ops.convert_to_numpy(model.hidden(x, training=False)), np.float64)
    logits = hidden @ head.rows(0, head.classes).T + head.offsets
    probabilities = np.exp(logits - logits.max(axis=1, keepdims=True))
    probabilities /= probabilities.sum(axis=1, keepdims=True)
    given = keras.ops.convert_to_numpy(model(x, training=False))
    np.testing.assert_allclose(probabilities, given, atol=1e-4)
    assert (logits.argmax(axis=1) == given.argmax(axis=1)).all()
    shown = found.shown_domain
    if domain is None:
        assert shown is None
    else:
        assert shown is not None
        assert shown.domain.contains(hidden, 1e-5).all()
        if isinstance(domain, Box):
            assert isinstance(shown.domain, Box)
            np.testing.assert_allclose(shown.domain.lower, domain.lower, atol=1e-5)
            np.testing.assert_allclose(shown.domain.upper, domain.upper, rtol=1e-5)
        else:
            assert isinstance(shown.domain, domain)


@pytest.mark.parametrize("form", FORMATS)
def test_models_inside_models(tmp_path: Path, form: str) -> None:
    """The head is in an inner model, and what precedes it in another one."""
    body = keras.Sequential([keras.Input((6,)), layers.Dense(7, activation="tanh")])
    top = keras.Sequential(
        [keras.Input((7,)), layers.Dropout(0.1), layers.Dense(5), layers.Softmax()]
    )
    inputs = keras.Input((6,))
    model = randomised(keras.Model(inputs, top(body(inputs))))
    found = find(saved(model, tmp_path, form), domain="auto")
    np.testing.assert_array_equal(found.head.weight, array(top.layers[1].kernel).T)
    np.testing.assert_array_equal(found.head.bias, array(top.layers[1].bias))
    assert "tanh" in found.domain_from
    assert found.head.domain.lower > -1.001


@pytest.mark.parametrize("form", FORMATS)
def test_a_dense_layer_at_every_step(tmp_path: Path, form: str) -> None:
    inner = layers.Dense(5, activation="softmax")
    model = randomised(keras.Sequential([keras.Input((9, 6)), layers.TimeDistributed(inner)]))
    head = load(saved(model, tmp_path, form))
    np.testing.assert_array_equal(head.weight, array(inner.kernel).T)


@pytest.mark.parametrize("form", FORMATS)
def test_a_1x1_convolution(tmp_path: Path, form: str) -> None:
    last = layers.Conv2D(5, 1)
    model = randomised(keras.Sequential([keras.Input((4, 4, 6)), last, layers.Softmax()]))
    np.testing.assert_array_equal(
        load(saved(model, tmp_path, form)).weight, array(last.kernel)[0, 0].T
    )


@pytest.mark.parametrize("form", FORMATS)
def test_several_outputs_are_listed_and_one_is_chosen_by_name(tmp_path: Path, form: str) -> None:
    inputs = keras.Input((6,))
    hidden = layers.Dense(4, activation="relu")(inputs)
    one, two = layers.Dense(3, name="colour"), layers.Dense(5, name="shape")
    path = saved(randomised(keras.Model(inputs, [one(hidden), two(hidden)])), tmp_path, form)
    with pytest.raises(AmbiguousError, match=r"2 outputs .*4 × 5.*4 × 3.*--weight") as raised:
        load(path)
    name = str(raised.value).partition(" (4 × 5)")[0].rpartition(" ")[2]
    found = find(path, weight=name, domain="auto")
    np.testing.assert_array_equal(found.head.weight, array(two.kernel).T)
    np.testing.assert_array_equal(found.head.bias, array(two.bias))
    assert "relu" in found.domain_from


def test_one_sigmoid_is_two_classes(tmp_path: Path) -> None:
    last = layers.Dense(1, activation="sigmoid")
    found = find(saved(randomised(keras.Sequential([keras.Input((6,)), last])), tmp_path, "keras"))
    kernel = array(last.kernel)[:, 0]
    np.testing.assert_array_equal(found.head.weight, [np.zeros(6), kernel])
    assert "two classes" in found.why


def test_a_sigmoid_for_each_class_is_noted(tmp_path: Path) -> None:
    model = keras.Sequential([keras.Input((6,)), layers.Dense(3, activation="sigmoid")])
    assert any("any number of labels" in n for n in find(saved(model, tmp_path, "keras")).notes)


def test_layers_without_written_names_are_found_by_their_order(tmp_path: Path) -> None:
    """Early versions of Keras 3 did not write a layer's name beside its variables."""
    model = dense_after(layers.Dense(7, activation="relu"), layers.Dense(6))
    path = saved(model, tmp_path, "keras")

    def nameless(file: h5py.File) -> None:
        groups: list[h5py.Group] = []
        file.visititems(lambda _, node: groups.append(node) if "name" in node.attrs else None)
        for group in groups:
            del group.attrs["name"]

    expected = load(path)
    assert load(rewritten(path, nameless)).fingerprint == expected.fingerprint


def test_weights_without_a_configuration_are_named_by_hand(tmp_path: Path) -> None:
    model = dense_after(layers.Dense(7))
    model.save_weights(tmp_path / "m.weights.h5")
    expected = load(saved(model, tmp_path, "keras"))
    with pytest.raises(AmbiguousError, match="--weight"):
        load(tmp_path / "m.weights.h5")
    head = load(tmp_path / "m.weights.h5", weight="layers/dense_1/vars/0")
    assert head.fingerprint == expected.fingerprint


def test_half_precision_is_kept(tmp_path: Path) -> None:
    for kind in ("float16", "bfloat16"):
        model = keras.Sequential([keras.Input((6,)), layers.Dense(4, dtype=kind)])
        head = load(saved(model, tmp_path, "keras"))
        assert head.dtype == kind
        stored = array(model.layers[0].kernel).astype(np.float64)
        np.testing.assert_array_equal(head.rows(0, 4), stored.T)


def test_without_h5py_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved(dense_after(), tmp_path, "keras")
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(UncorkError, match=r"uncork\[keras\]"):
        load(path)


def rewritten(path: Path, change: Callable[[h5py.File], None]) -> Path:
    """A .keras file with its weights changed."""
    with zipfile.ZipFile(path) as archive:
        config, weights = archive.read("config.json"), archive.read("model.weights.h5")
    buffer = io.BytesIO(weights)
    with h5py.File(buffer, "r+") as file:
        change(file)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("config.json", config)
        archive.writestr("model.weights.h5", buffer.getvalue())
    return path


KERNEL = "layers/dense/vars/0"


def external(file: h5py.File) -> None:
    shape = file[KERNEL].shape
    del file[KERNEL]
    file.create_dataset(KERNEL, shape, "f4", external=[("secret", 0, h5py.h5f.UNLIMITED)])


def virtual(file: h5py.File) -> None:
    shape = file[KERNEL].shape
    del file[KERNEL]
    layout = h5py.VirtualLayout(shape, "f4")
    layout[:] = h5py.VirtualSource("secret.h5", "x", shape)
    file.create_virtual_dataset(KERNEL, layout)


def linked(file: h5py.File) -> None:
    del file[KERNEL]
    file[KERNEL] = h5py.ExternalLink("secret.h5", "/x")


def bomb(file: h5py.File) -> None:
    del file[KERNEL]
    file.create_dataset(KERNEL, (1 << 20, 1 << 20), "f4", chunks=(1024, 1024), compression="gzip")


def text(file: h5py.File) -> None:
    del file[KERNEL]
    file[KERNEL] = ["not", "numbers"]


@pytest.mark.parametrize("change", [external, virtual, linked, bomb, text])
def test_hostile_weights_end_in_one_line(tmp_path: Path, change: Any) -> None:
    (tmp_path / "secret").write_bytes(bytes(1000))
    with h5py.File(tmp_path / "secret.h5", "w") as file:
        file["x"] = np.zeros((6, 5), np.float32)
    path = rewritten(saved(dense_after(), tmp_path, "keras"), change)
    with pytest.raises(UncorkError) as raised:
        load(path)
    assert "\n" not in str(raised.value)
    assert "cannot be read as" not in str(raised.value)


def circular(config: Any) -> None:
    config["config"]["layers"][-1]["inbound_nodes"][0]["args"][0]["config"]["keras_history"] = [
        "before_all", 0, 0
    ]  # fmt: skip


def nested(config: Any) -> None:
    inner: Any = {"class_name": "Sequential", "config": {"layers": []}}
    for depth in range(200):
        inner = {"class_name": "Sequential", "config": {"name": f"s{depth}", "layers": [inner]}}
    config.clear()
    config.update(inner)


def foreign(config: Any) -> None:
    config["class_name"] = "MyModel"


def lost(config: Any) -> None:
    config["config"]["output_layers"] = ["nobody", 0, 0]


def smaller(config: Any) -> None:
    config["config"]["layers"][1]["config"]["units"] = 4


@pytest.mark.parametrize("change", [circular, nested, foreign, lost, smaller])
def test_hostile_configurations_end_in_one_line(tmp_path: Path, change: Any) -> None:
    path = saved(dense_after(), tmp_path, "keras")
    with zipfile.ZipFile(path) as archive:
        config, weights = json.loads(archive.read("config.json")), archive.read("model.weights.h5")
    change(config)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("config.json", json.dumps(config))
        archive.writestr("model.weights.h5", weights)
    with pytest.raises(UncorkError) as raised:
        load(path)
    assert "\n" not in str(raised.value)
    assert "cannot be read as" not in str(raised.value)
