"""Random torch, Keras and TensorFlow Lite models: nothing arrives outside a claimed domain."""

from __future__ import annotations

import os
from typing import Any

import pytest
from fuzz_domains import keras_models, tflite_models, torch_modules

SEED = int(os.environ.get("UNCORK_TEST_SEED", "0"))


@pytest.mark.parametrize(
    ("models", "count", "domains"),
    [(torch_modules, 60, 20), (keras_models, 24, 8), (tflite_models, 40, 14)],
    ids=["torch", "keras", "tflite"],
)
def test_nothing_arrives_outside_the_domains_of_random_models(
    models: Any, count: int, domains: int
) -> None:
    figures = models.run(count, SEED)
    assert not figures.violations
    assert figures.known >= domains  # not nothing known of them all
