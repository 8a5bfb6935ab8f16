"""Hidden widths of real small models, told from their float32 outputs alone."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from black_boxes import BOXES, BlackBox, logits_of

from uncork import UncorkError
from uncork.theory.bottleneck import log_softmax
from uncork.theory.width import find_gap, find_softcap, hidden_width


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "place", range(len(BOXES)), ids=[f"{b.name}{'+' * b.trained}" for b in BOXES]
)
def test_the_width_is_exact_from_logits_and_from_log_probabilities(place: int) -> None:
    box: BlackBox = BOXES[place]
    logits = logits_of(box)
    found = hidden_width(logits)
    assert found.width == box.width
    assert found.confidence == "clear"
    assert len(found.readings) == 2  # the other one is honest about what outputs cannot tell
    told = hidden_width(logits, norm=box.norm)  # type: ignore[arg-type]
    assert told.width == box.width
    quiet = hidden_width(log_softmax(logits).astype(np.float32), "log-probabilities")
    assert quiet.width == box.width


@pytest.mark.filterwarnings("ignore")
def test_a_cap_is_found_and_undone() -> None:
    (gemma,) = (box for box in BOXES if box.name == "Gemma2")
    small = logits_of(gemma)  # so small that the cap hardly bends them
    assert find_softcap(small) == 30.0
    logits = 30 * np.tanh(60 * np.arctanh(small.astype(float) / 30))  # as a trained model has
    assert np.abs(logits).max() > 20
    logits = logits.astype(np.float32)
    found = hidden_width(logits)
    assert (found.width, found.softcap, found.confidence) == (32, 30.0, "clear")
    assert hidden_width(logits, softcap=30.0).width == 32
    assert hidden_width(logits, softcap="find").softcap == 30.0
    with pytest.raises(UncorkError, match="was never there"):
        hidden_width(logits, softcap=5.0)
    with pytest.raises(UncorkError, match="logits only"):
        hidden_width(log_softmax(logits), "log-probabilities", softcap=30.0)


def made(
    contexts: int, width: int, classes: int = 300, *, fading: float = 1.0, seed: int = 0
) -> np.ndarray:
    rng = np.random.default_rng(seed)
    states = rng.standard_normal((contexts, width)) * np.geomspace(1, fading, width)
    return np.asarray(states @ rng.standard_normal((classes, width)).T)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_narrow_types_are_enough_where_directions_are_even(dtype: type) -> None:
    assert hidden_width(made(200, 40).astype(dtype)).width == 40


def test_an_odd_width_needs_to_be_told_the_norm() -> None:
    logits = made(200, 41).astype(np.float32)
    assert hidden_width(logits).readings[0][0] == 41
    assert hidden_width(logits).width == 42  # the even reading: a LayerNorm of 42
    assert hidden_width(logits, norm="other").width == 41


@pytest.mark.parametrize(
    "logits",
    [
        np.random.default_rng(0).standard_normal((100, 200)),  # no bottleneck at all
        made(40, 64),  # fewer contexts than the width
        made(64, 64),
        made(200, 64, classes=50),  # fewer classes
        made(300, 64, fading=1e-5).astype(np.float16),  # directions fade into rounding
        np.logaddexp(made(200, 12), made(200, 13, seed=1)),  # a mixture
    ],
    ids=["full rank", "few contexts", "just as many", "few classes", "coarse", "mixture"],
)
def test_what_outputs_do_not_show_is_not_claimed(logits: np.ndarray) -> None:
    found = hidden_width(logits)
    assert found.width is None
    assert found.confidence == "none"
    assert "no gap" in found.why


def test_a_gap_is_a_fall_to_a_floor() -> None:
    floor = np.full(30, 1e-6)
    gap = find_gap(np.concatenate([[1e3], np.geomspace(1, 0.1, 20), floor]))
    assert gap is not None
    assert (gap.rank, gap.clear) == (21, True)
    assert find_gap(np.concatenate([[1e3], np.geomspace(1, 1e-8, 60)])) is None
    assert find_gap(np.zeros(9)) is None
    assert find_gap(np.ones(2)) is None


def test_a_wrong_norm_is_refused() -> None:
    with pytest.raises(UncorkError, match="layernorm"):
        hidden_width(made(50, 4), norm="batchnorm")  # type: ignore[arg-type]


def test_no_cap_is_not_a_cap() -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(40, 5)) @ rng.normal(size=(5, 60))
    with pytest.raises(UncorkError, match="a cap of inf is none"):
        hidden_width(logits, softcap=np.inf)


@pytest.mark.parametrize("alike", ["classes", "zero contexts", "contexts", "both"])
def test_repeated_classes_and_contexts_do_not_hide_the_width(alike: str) -> None:
    """Rounding repeats itself in them, and falls to nothing after the last of the others."""
    rng = np.random.default_rng(0)
    logits = (rng.standard_normal((1000, 20)) @ rng.standard_normal((20, 400))).astype(np.float32)
    if alike in ("classes", "both"):
        logits[:, 150:] = logits[:, 150:151]
    if alike == "zero contexts":
        logits[500:] = 0
    if alike in ("contexts", "both"):
        logits = logits[rng.integers(0, 60, 300)]
    found = hidden_width(logits)
    assert (found.width, found.confidence) == (20, "clear")


def test_a_fall_of_the_rounding_itself_is_no_gap() -> None:
    values = np.concatenate([np.full(20, 1.0), np.full(200, 1e-6), np.full(200, 1e-15)])
    assert find_gap(values, noise=1e-5).rank == 20
    assert find_gap(np.full(420, 1.0) * np.repeat([1e-6, 1e-15], 210), noise=1e-5) is None


def test_a_width_that_halves_of_the_data_do_not_bear_out_is_not_clear() -> None:
    """Half of the contexts lie in twelve of the twenty dimensions."""
    rng = np.random.default_rng(0)
    hidden = rng.standard_normal((400, 20))
    hidden[::2, 12:] = 0
    found = hidden_width((hidden @ rng.standard_normal((20, 300))).astype(np.float32))
    assert (found.width, found.confidence) == (20, "weak")
    assert "half of the data" in found.why


def test_few_contexts_are_borne_out_by_halves_of_the_classes() -> None:
    rng = np.random.default_rng(0)
    logits = (rng.standard_normal((30, 20)) @ rng.standard_normal((20, 300))).astype(np.float32)
    assert hidden_width(logits).confidence == "clear"
    assert hidden_width(logits[:, :30]).confidence == "weak"
