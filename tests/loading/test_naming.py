"""Heads of state dicts are found by the names that real model codebases give them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import uncork
from uncork import UncorkError
from uncork.cli import app
from uncork.loading import find
from uncork.loading.decisions import compares_by_cosine

CLASSES, FEATURES = 11, 7


def saved(path: Path, **shapes: tuple[int, ...]) -> Path:
    """Arrays of these shapes by name, with . for __."""
    draw = np.random.default_rng(0).normal
    arrays = {name.replace("__", "."): draw(size=shape) for name, shape in shapes.items()}
    np.savez(path, **arrays)
    return path


@pytest.mark.parametrize(
    ("weight", "bias"),
    [
        ("Prediction.weight", "Prediction.bias"),  # EasyOCR's recognisers
        ("module.Prediction.weight", "module.Prediction.bias"),
        ("module.Prediction.generator.weight", "module.Prediction.generator.bias"),
        ("fc_w", "fc_b"),  # g2p_en
        ("_fc.weight", "_fc.bias"),  # EfficientNet
        ("decoder.fc_out.weight", "decoder.fc_out.bias"),
        ("classifier.6.weight", "classifier.6.bias"),  # torchvision's VGG, AlexNet
        ("module.classifier.1.weight", "module.classifier.1.bias"),  # its MobileNet
    ],
)
def test_an_output_layer_is_known_by_its_name(tmp_path: Path, weight: str, bias: str) -> None:
    shapes = {weight: (CLASSES, FEATURES), bias: (CLASSES,), "enc_w_ih": (21, FEATURES),
              "features.3.weight": (FEATURES, 20), "features.3.bias": (FEATURES,)}  # fmt: skip
    found = find(saved(tmp_path / "model.npz", **shapes))
    assert (found.weight_name, found.bias_name) == (weight, bias)
    assert (found.head.classes, found.head.features) == (CLASSES, FEATURES)


def test_of_a_sequence_the_last_layer_is_the_head(tmp_path: Path) -> None:
    shapes = {"classifier.0.weight": (30, 20), "classifier.0.bias": (30,),
              "classifier.3.weight": (CLASSES, 30), "classifier.3.bias": (CLASSES,)}  # fmt: skip
    found = find(saved(tmp_path / "model.npz", **shapes))
    assert found.weight_name == "classifier.3.weight"
    assert "the last layer of a sequence" in found.why


def test_a_sequence_that_ends_in_something_else_is_not_guessed_at(tmp_path: Path) -> None:
    shapes = {"classifier.0.weight": (CLASSES, 20), "classifier.0.bias": (CLASSES,),
              "classifier.1.weight": (CLASSES,), "stem.weight": (20, 20)}  # fmt: skip
    with pytest.raises(UncorkError, match="name one with --weight"):
        uncork.load(saved(tmp_path / "model.npz", **shapes))


def test_a_sequence_beside_an_output_layer_is_not_the_head(tmp_path: Path) -> None:
    shapes = {"head.0.weight": (FEATURES, 20), "lm_head.weight": (CLASSES, FEATURES)}
    assert find(saved(tmp_path / "model.npz", **shapes)).weight_name == "lm_head.weight"


@pytest.mark.parametrize("weight", ["arcface.weight", "module.metric_fc.weight"])
def test_a_head_that_compares_by_cosine_is_known_by_its_name(tmp_path: Path, weight: str) -> None:
    """ArcFace and its kin divide rows by their length when they run."""
    shapes = {weight: (CLASSES, FEATURES), "backbone.fc.weight": (FEATURES, 20)}
    path = saved(tmp_path / "model.npz", **shapes)
    found = find(path)
    assert found.weight_name == weight
    assert found.head.reading is not None
    assert "--metric cosine asks about that" in found.head.reading.doubts[0]
    assert not find(path, metric="inner").head.reading.doubts  # type: ignore[union-attr]
    items = uncork.load_items(path, metric="cosine")
    assert items.reading is not None
    assert not items.reading.doubts
    done = CliRunner().invoke(app, ["audit", str(path), "--metric", "cosine", "--quiet"])
    assert done.exit_code == 0
    assert "compared by cosine" in done.stdout


@pytest.mark.parametrize("weight", ["lm_head.weight", "search.weight", "arc.weight", "face.weight"])
def test_other_names_say_nothing_of_cosines(weight: str) -> None:
    assert not compares_by_cosine(weight)
