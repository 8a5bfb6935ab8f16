"""Weights in JSON: the plain form, scikit-learn's names, networks that brain.js wrote and ran."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from uncork import UncorkError
from uncork.cli import app
from uncork.loading import find, load

MADE = Path(__file__).parent / "made" / "brain_js"
RANDOM = np.random.default_rng(0)
W, B = RANDOM.normal(size=(6, 4)), RANDOM.normal(size=6)
LABELS = ["a", "b", "c", "d", "e", "f"]
COLOURS = ("red", "green", "blue", "white", "black")
RANGES = {"sigmoid": "box:0,1", "tanh": "box:-1,1", "leaky-relu": None}
FUNCTIONS = {
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": np.tanh,
    "leaky-relu": lambda x: np.where(x > 0, x, 0.01 * x),
}


def saved(path: Path, **said: Any) -> Path:
    path.write_text(json.dumps(said))
    return path


def plain(path: Path) -> None:
    saved(path, weight=W.tolist(), bias=B.tolist(), labels=LABELS)


@pytest.mark.parametrize(
    ("weight", "bias", "labels"),
    [("weight", "bias", "labels"), ("weights", "biases", "classes"), ("W", "b", "class_names"),
     ("fc.weight", "fc.bias", "names"), ("coef_", "intercept_", "classes_")],
)  # fmt: skip
def test_arrays_are_found_by_their_names(
    weight: str, bias: str, labels: str, tmp_path: Path
) -> None:
    said = {labels: LABELS, weight: W.tolist(), bias: B.tolist(), "meta": "made here"}
    head = load(saved(tmp_path / "m.json", **said))
    np.testing.assert_array_equal(head.weight, W)
    np.testing.assert_array_equal(head.bias, B)
    assert head.labels == tuple(LABELS)


def test_layers_inside_layers_have_a_dot_in_their_names(tmp_path: Path) -> None:
    said = {"encoder": {"weight": W.T.tolist()}, "head": {"weight": W.tolist(), "bias": B.tolist()},
            "id2label": dict(enumerate(LABELS))}  # fmt: skip
    found = find(saved(tmp_path / "m.json", **said))
    assert found.weight_name == "head.weight"
    np.testing.assert_array_equal(found.head.weight, W)
    assert found.head.labels == tuple(LABELS)


def test_one_row_for_two_classes_is_a_sign(tmp_path: Path) -> None:
    said = {"coef_": W[:1].tolist(), "intercept_": [0.5], "classes_": ["no", "yes"]}
    head = load(saved(tmp_path / "m.json", **said))
    np.testing.assert_array_equal(head.weight, [np.zeros(4), W[0]])
    np.testing.assert_array_equal(head.bias, [0, 0.5])
    assert head.labels == ("no", "yes")


@pytest.mark.parametrize("intercept", [0.5, [0.5], [[0.5]]])
def test_the_intercept_of_one_row_may_be_a_number_alone(intercept: Any, tmp_path: Path) -> None:
    said = {"coef_": W[:1].tolist(), "intercept_": intercept, "classes_": ["no", "yes"]}
    np.testing.assert_array_equal(load(saved(tmp_path / "m.json", **said)).bias, [0, 0.5])


def test_a_row_whose_bias_does_not_fit_is_no_sign(tmp_path: Path) -> None:
    said = {"weight": [[1.0, 2.0, 3.0]], "bias": [0.0, 9.0], "labels": ["no", "yes"]}
    with pytest.raises(UncorkError, match="does not fit its 1 classes"):
        load(saved(tmp_path / "m.json", **said))


def test_labels_that_fit_the_columns_alone_say_where_the_classes_are(tmp_path: Path) -> None:
    path = saved(tmp_path / "m.json", weight=W.tolist(), labels=LABELS[:4])
    for name in (None, "weight"):
        head = load(path, weight=name)
        np.testing.assert_array_equal(head.weight, W.T)
        assert head.labels == tuple(LABELS[:4])
    said = {"weight": W.tolist(), "bias": B.tolist(), "labels": LABELS[:4]}
    head = load(saved(tmp_path / "m.json", **said))  # a bias says more
    np.testing.assert_array_equal(head.weight, W)
    assert head.labels is None


@pytest.mark.parametrize(
    ("version", "activation"),
    [(1, "sigmoid"), (1, "tanh"), (2, "sigmoid"), (2, "tanh"), (2, "leaky-relu")],
)
def test_brain_js_computes_with_this_head(version: int, activation: str) -> None:
    file = MADE / f"{version}-{activation}.json"
    found = find(file, domain="auto")
    assert found.head.labels == COLOURS
    runs, function = json.loads(file.with_suffix(".runs").read_text()), FUNCTIONS[activation]
    tensors = {name: one.read() for name, one in found.contents.tensors.items()}
    for run in runs:
        x = np.array([run["input"][name] for name in "rgb"], float)
        for layer in (1, 2):
            x = function(tensors[f"layers.{layer}.weight"] @ x + tensors[f"layers.{layer}.bias"])
        scores = function(np.asarray(found.head.weight) @ x + np.asarray(found.head.bias))
        np.testing.assert_allclose(scores, [run["output"][c] for c in COLOURS], atol=2e-6)
        assert found.head.domain.contains(x)
    expected = RANGES[activation]
    assert found.head.reading is not None
    assert len(found.head.reading.doubts) == (activation == "leaky-relu")
    assert (found.shown_domain is None) == (expected is None)
    assert expected is None or str(found.head.domain) == expected


def network(version: int, activation: str, **other: Any) -> dict[str, Any]:
    said: dict[str, Any] = json.loads((MADE / f"{version}-{activation}.json").read_text())
    return said | other


def test_the_activation_is_the_one_that_brain_js_runs(tmp_path: Path) -> None:
    """train(data, {activation}) changes what is run and leaves the constructor's options alone."""
    said = network(2, "sigmoid")
    said["trainOpts"]["activation"] = "leaky-relu"
    for options in ({"activation": "sigmoid"}, {}):
        found = find(saved(tmp_path / "m.json", **said | {"options": options}), domain="auto")
        assert found.shown_domain is None
        assert found.head.reading is not None
        assert found.head.reading.doubts
    found = find(saved(tmp_path / "m.json", **network(1, "tanh", type="FeedForward")))
    assert found.shown_domain is None


def test_a_leaky_relu_that_does_not_rise_is_a_doubt(tmp_path: Path) -> None:
    said = network(2, "leaky-relu")
    said["trainOpts"]["leakyReluAlpha"] = -2.0
    found = find(saved(tmp_path / "m.json", **said))
    assert found.head.reading is not None
    assert any("not the order of the scores" in one for one in found.head.reading.doubts)


def test_names_of_outputs_go_with_the_outputs_alone(tmp_path: Path) -> None:
    said = network(1, "sigmoid", outputLookup=dict(zip(COLOURS, (4, 3, 2, 1, 0), strict=True)))
    assert load(saved(tmp_path / "m.json", **said)).labels == COLOURS  # each has its own unit
    said = network(1, "sigmoid")
    said["layers"][2] = {"4": said["layers"][2]["0"], **said["layers"][2]}
    said["sizes"][2] = 5
    for unit in said["layers"][3].values():
        unit["weights"]["4"] = 0.0
    found = find(saved(tmp_path / "m.json", **said), weight="layers.2.weight")
    assert found.head.labels is None
    assert "output" not in found.why


DAMAGE: dict[str, Any] = {
    "have different lengths": {"weight": [[1, 2], [3]], "bias": [1, 2]},
    "a number too large": '{"weight": [[1, ' + "9" * 400 + '], [3, 4]], "bias": [1, 2]}',
    "is no JSON": '{"weight": [[1, 2], [3, 4',
    r"does not fit its 2 classes": {"weight": [[1, 2], [3, 4]], "bias": [1, 2, 3]},
    "layer 1 of a brain.js network is damaged": {"sizes": [1, 2], "layers": [{}, {"0": {}}]},
    "two arrays called 'weight'": {"weight": [[1, 2], [3, 4]], "weights": [[5, 6], [7, 8]]},
    "two arrays called 'a.weight'": {"a.weight": [[1, 2]], "a": {"weight": [[5, 6]]}},
    "a name of 100000 characters": {"x" * 100_000: {"a": [1]}, "weight": [[1, 2], [3, 4]]},
    "'bias' holds something else than numbers": {
        "weight": [[1, 2], [3, 4], [5, 6]], "bias": [1, None, 2],
    },
    "'intercept_' holds something else than numbers": {
        "coef_": [[1, 2], [3, 4]], "intercept_": {"a": 1, "b2": 2},
    },
    "'b' holds something else than numbers": {"W": [[1, 2], [3, 4]], "b": ["1", "2"]},
    "'head.weight' holds something else than numbers": {
        "encoder": {"weight": [[1, 2], [3, 4]]}, "head": {"weight": [[1, None], [3, 4]]},
    },
    "intercept .* may be the bias of W": {"W": [[1, 2], [3, 4]], "intercept": [1, 2]},
    "layer 2 of a brain.js network has units of other inputs": {
        "sizes": [1, 2, 2], "layers": [{}, {"weights": [[1], [2]], "biases": [1, 2]},
                                    {"weights": [[1], [2]], "biases": [1, 2]}],
    },
    "layer 1 of a brain.js network has 2 units": {
        "sizes": [1, 1], "layers": [{}, {"weights": [[1], [2]], "biases": [1, 2]}],
    },
    "layer 1 of a brain.js network has units of other": {
        "sizes": [2, 2], "layers": [{}, {"a": {"weights": {"x": 1}, "bias": 1},
                                      "b": {"weights": {"x": 1, "y": 2}, "bias": 1}}],
    },
    "layer 1 of a brain.js network has no weights": {
        "sizes": [1, 2], "layers": [{}, {"weights": [[1.0]], "biases": [1, 2]}],
    },
}  # fmt: skip


@pytest.mark.parametrize("message", DAMAGE)
def test_damage_is_refused_in_one_line(message: str, tmp_path: Path) -> None:
    said = DAMAGE[message]
    (tmp_path / "m.json").write_text(said if isinstance(said, str) else json.dumps(said))
    with pytest.raises(UncorkError, match=message):
        load(tmp_path / "m.json")
    done = CliRunner().invoke(app, ["audit", str(tmp_path / "m.json")])
    assert (done.exit_code, done.stdout) == (2, "")


@pytest.mark.parametrize(
    "said",
    [{"id": 1, "vector": [1.0, 2.0]}, {"model_type": "llama", "weight": [[1]]},
     {"learner": {}, "weights": {"a": 1}}],
)  # fmt: skip
def test_other_json_is_not_taken_for_weights(said: dict[str, Any], tmp_path: Path) -> None:
    from uncork.loading.json_weights.file import looks_like_json_weights

    path = saved(tmp_path / "m.json", **said)
    assert not looks_like_json_weights(path, path.read_bytes()[:32], path.stat().st_size)


def test_a_hostile_text_is_told_from_weights_in_no_time(tmp_path: Path) -> None:
    from uncork.loading.json_weights.file import looks_like_json_weights

    path = tmp_path / "m.json"
    path.write_bytes(b"{" + b'"sizes":[1,' * 90_000)
    began = time.process_time()
    assert not looks_like_json_weights(path, path.read_bytes()[:32], path.stat().st_size)
    assert time.process_time() - began < 5
