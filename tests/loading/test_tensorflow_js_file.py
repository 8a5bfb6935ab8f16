"""TensorFlow.js: graphs and layers, weights in shards and as codes; held to what it computes.

The models in made/tensorflow_js were written and run by TensorFlow.js, by make_tensorflow_js.mjs.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from uncork import UncorkError
from uncork.loading import find

MADE = Path(__file__).parent / "made" / "tensorflow_js"
MODELS = sorted(path.parent.name for path in MADE.rglob("computed.json"))


def copied(model: str, folder: Path) -> Path:
    shutil.copytree(MADE / model, folder / "model")
    return folder / "model" / "model.json"


def changed(path: Path, **more: Any) -> Path:
    data = json.loads(path.read_bytes()) | more
    path.write_text(json.dumps({key: value for key, value in data.items() if value is not None}))
    return path


@pytest.mark.parametrize("model", MODELS)
def test_the_head_computes_what_tensorflow_js_computes(model: str) -> None:
    found = find(MADE / model / "model.json", domain="auto")
    computed, head = json.loads((MADE / model / "computed.json").read_bytes()), found.head
    x, z = (np.asarray(computed[key], np.float64) for key in "xz")
    logits = x @ np.asarray(head.weight, np.float64).T + np.asarray(head.bias, np.float64)
    np.testing.assert_allclose(logits, z, atol=1e-5)
    assert logits.std(axis=0).min() > 0.001  # so that agreeing is no accident
    assert all(head.domain.contains(row, 1e-6) for row in x)
    assert ("tanh" if model == "layers" else "Clip (seen)") in found.domain_from
    assert found.contents.format == "tensorflow.js"
    assert not head.reading.doubts


def test_codes_are_decoded_as_javascript_does_it() -> None:
    """q·scale + min in float64, rounded to float32 once."""
    path = MADE / "graph-uint8" / "model.json"
    manifest = json.loads(path.read_bytes())["weightsManifest"][0]["weights"]
    data = (MADE / "graph-uint8" / "group1-shard1of1.bin").read_bytes()
    kernel = next(one for one in manifest if one["name"] == "kernel")
    codes = np.frombuffer(data, np.uint8, 24, 72 + 4).reshape(4, 6)
    how = kernel["quantization"]
    expected = [[np.float32(float(q) * how["scale"] + how["min"]) for q in row] for row in codes]
    found = find(path)
    np.testing.assert_array_equal(found.head.weight, np.asarray(expected).T)
    assert "uint8 codes times" in found.head.reading.folded[0]


def test_labels_in_the_folder_name_the_classes() -> None:
    assert find(MADE / "layers" / "model.json").head.labels == tuple("abcdefg")


def test_without_a_signature_the_outputs_are_what_nothing_takes(tmp_path: Path) -> None:
    path = changed(copied("graph-uint8", tmp_path), signature=None)
    whole = find(MADE / "graph-uint8" / "model.json")
    assert find(path).head.fingerprint == whole.head.fingerprint


def test_weights_without_a_graph_are_layers_by_name(tmp_path: Path) -> None:
    """As face-api keeps its networks: a manifest alone."""
    path = copied("graph-uint8", tmp_path)
    manifest = json.loads(path.read_bytes())["weightsManifest"]
    for entry in manifest[0]["weights"]:
        entry["name"] = f"fc/{'weights' if entry['name'] == 'kernel' else entry['name']}"
    alone = path.with_name("net-weights_manifest.json")
    alone.write_text(json.dumps(manifest))
    found, whole = find(alone), find(path)
    assert (found.weight_name, found.bias_name) == ("fc/weights", "fc/bias")
    assert found.head.fingerprint == whole.head.fingerprint


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"paths": ["../model/group1-shard1of1.bin/../../../x"]}, "outside its folder"),
        ({"paths": ["nothing.bin"]}, "which is not there"),
        ({"paths": []}, "truncated or damaged"),
        ({"paths": ["group1-shard1of1.bin"] * 2}, "another model, or damaged"),
        ({"weights": [{"name": "a", "shape": [10**9, 10**9], "dtype": "float32"}]}, "truncated"),
        ({"weights": [{"name": "a", "shape": [-1], "dtype": "float32"}]}, "damaged"),
        ({"weights": [{"name": "a", "shape": [4], "dtype": "string"}]}, "damaged|past the end"),
        ({"weights": [{"name": "a", "shape": [1], "dtype": "int4"}]}, "not read"),
        ({"weights": [{"shape": [1]}]}, "no model of TensorFlow.js, or is damaged"),
    ],
)
def test_a_manifest_that_does_not_fit_its_files_is_refused(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = copied("graph-uint8", tmp_path)
    group = json.loads(path.read_bytes())["weightsManifest"][0]
    changed(path, weightsManifest=[group | change])
    with pytest.raises(UncorkError, match=message):
        find(path)
