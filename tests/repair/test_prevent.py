"""Prevention: heads on which every class is argmaxable, proven after rounding."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models import PP_OCR_V4
from small_heads import quick
from uncork import Ball, Box, Domain, Head, Unbounded, UncorkError, audit, load
from uncork.domain import LayerNorm
from uncork.repair.prevent import prevent, row_norms
from uncork.repair.prove_prevented import (
    as_stored,
    audit_prevented,
    made_equal,
    prevent_as_stored,
)
from uncork.theory.random_heads import random_head

DOMAINS = [Box(100), Unbounded(), Ball(3.0), Box(0.01), Box(0, np.inf), Box(-0.28, np.inf)]


def every_class_wins(head: Head, how: str, **settings: object) -> Head:
    made = prevent_as_stored(head, how, device="cpu", jobs=1, **settings)  # type: ignore[arg-type]
    changed = as_stored(head, made)
    result = audit_prevented(changed, made, device="cpu", jobs=1)
    assert result.counts["argmaxable"] + result.counts["tied"] == head.classes
    assert result.proven
    return changed


def test_a_random_head_loses_classes_unless_prevented() -> None:
    head = random_head(500, 10)
    assert audit(head, device="cpu", jobs=1).counts["unargmaxable"] == 74
    for how in ("norm", "bias"):
        changed = every_class_wins(head, how)
        assert audit(changed, device="cpu", jobs=1).counts["argmaxable"] == 500


@pytest.mark.parametrize("metric", ["identity", "covariance", "given"])
@pytest.mark.parametrize("how", ["norm", "bias"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_every_metric_prevents_in_the_stored_type(how: str, metric: str, dtype: type) -> None:
    head = random_head(120, 5, bias=True, seed=1)
    head = head.replace(weight=head.weight.astype(dtype), bias=head.bias.astype(dtype))  # type: ignore[union-attr]
    matrix = np.diag([1.0, 2, 3, 4, 5]) + 0.1
    every_class_wins(head, how, metric=matrix if metric == "given" else metric)


@pytest.mark.parametrize("domain", DOMAINS, ids=str)
def test_the_bias_is_scaled_and_centred_to_the_domain(domain: Domain) -> None:
    head = random_head(60, 3, seed=2, domain=domain)
    made = prevent(head, "bias")
    witnesses = made.witness(head.rows(0, 60))
    assert domain.contains(witnesses).all()
    logits = witnesses @ head.weight.T + made.bias
    np.testing.assert_array_equal(logits.argmax(axis=1), np.arange(60))
    every_class_wins(head, "bias")


def test_after_a_layer_norm_the_witnesses_stay_on_its_image() -> None:
    rng = np.random.default_rng(3)
    domain = LayerNorm(rng.uniform(0.5, 2, 6), rng.normal(size=6))
    head = random_head(50, 6, seed=3, domain=domain)
    assert len(audit(head, device="cpu", jobs=1).unargmaxable) > 0
    every_class_wins(head, "bias")


def test_the_papers_formulas() -> None:
    head = random_head(40, 4, bias=True, seed=4)
    norms = row_norms(head)
    bias = prevent(head, "bias")
    np.testing.assert_allclose(bias.bias, -0.5 * norms**2)
    assert bias.weight is head.weight
    norm = prevent(head, "norm")
    assert norm.bias is None
    np.testing.assert_allclose(np.linalg.norm(norm.weight, axis=1), norms.mean())
    np.testing.assert_allclose(norm.weight / norms.mean(), head.weight / norms[:, None])


def test_the_least_change_is_less_than_the_papers_and_still_prevents() -> None:
    rng = np.random.default_rng(5)
    weight = rng.normal(size=(200, 6))
    bias = -0.3 * (weight**2).sum(axis=1) + weight @ rng.normal(size=6) + rng.normal(size=200)
    head = Head(weight, bias)
    assert len(audit(head, device="cpu", jobs=1).unargmaxable) > 0
    changed = every_class_wins(head, "bias", least=True)
    assert np.std(changed.offsets - bias) < 1.05
    assert np.std(prevent(head, "bias").bias - bias) > 1.5  # type: ignore[operator]


@given(st.integers(0, 2**32), st.sampled_from(["norm", "bias"]))
@quick(40)
def test_small_heads_of_any_kind_keep_every_class(seed: int, how: str) -> None:
    rng = np.random.default_rng(seed)
    weight = rng.normal(size=(rng.integers(2, 30), rng.integers(1, 5)))
    if how == "norm" and weight.shape[1] == 1:
        weight = weight[:2] * [[1], [-1]] * np.sign(weight[:2])  # a line has two directions
    weight[1] = weight[0] if rng.random() < 0.3 else weight[1]
    every_class_wins(Head(weight, rng.normal(size=len(weight))), how)


def test_rows_an_ulp_apart_get_the_apex_of_the_bowl() -> None:
    """Untrained rows crowd: −½‖w‖² rounded to float32 no longer tells them apart."""
    rng = np.random.default_rng(6)
    crowd = np.full((80, 12), 0.1, np.float32)
    crowd = np.where(rng.random(crowd.shape) < 0.5, np.nextafter(crowd, np.float32(1)), crowd)
    weight = np.concatenate([rng.normal(size=(100, 12)).astype(np.float32), crowd])
    head = Head(weight, np.zeros(180, np.float32))
    made = prevent_as_stored(head, "bias", device="cpu", jobs=1)
    assert any("apex" in note for note in made.notes)
    every_class_wins(head, "bias")


def test_a_real_recogniser_keeps_every_character() -> None:
    head = load(PP_OCR_V4)
    changed = every_class_wins(head, "bias")
    assert changed.dtype == "float32"


def test_equal_rows_tie_and_nothing_can_be_done() -> None:
    weight = np.array([[1.0, 2], [1, 2], [3, 4], [0, 0]])
    made = prevent(Head(weight), "bias")
    result = audit_prevented(Head(weight, made.bias), made, device="cpu", jobs=1)
    assert result.tied.tolist() == [0, 1]
    assert result.argmaxable.tolist() == [2, 3]


def test_a_witness_that_theory_gets_wrong_is_not_believed() -> None:
    """The prevention's word counts for nothing: another head's prevention proves nothing here."""
    head = random_head(200, 4, seed=8)
    result = audit_prevented(head, prevent(head, "bias"), device="cpu", jobs=1)
    expected = audit(head, device="cpu", jobs=1)
    np.testing.assert_array_equal(result.verdicts, expected.verdicts)
    assert len(result.unargmaxable) > 50


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"how": "both"}, "expected norm or bias"),
        ({"how": "bias", "metric": "euclid"}, "expected identity or covariance"),
        ({"how": "bias", "metric": np.eye(3)}, r"shape \(3, 3\)"),
        ({"how": "bias", "metric": np.diag([1.0, -1])}, "not positive definite"),
        ({"how": "bias", "metric": np.array([[1.0, 2], [0, 1]])}, "not symmetric"),
        ({"how": "bias", "scale": -1.0}, "positive number"),
        ({"how": "bias", "scale": 1.0, "least": True}, "not both"),
        ({"how": "norm", "least": True}, "how='bias'"),
        ({"how": "norm"}, "class 1 is a row of zeros"),
    ],
)
def test_what_makes_no_sense_is_refused(settings: dict[str, object], message: str) -> None:
    head = Head(np.array([[1.0, 2], [0, 0], [3, 1]]))
    with pytest.raises(UncorkError, match=message):
        prevent(head, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [1e-200, 1e200])
@pytest.mark.parametrize("how", ["norm", "bias"])
def test_magnitudes_whose_squares_float64_cannot_hold_are_refused(how: str, size: float) -> None:
    with pytest.raises(UncorkError, match="does not hold its square"):
        prevent(Head(np.eye(3) * size), how)


def test_a_scale_too_large_for_the_domain_is_kept_and_said() -> None:
    head = random_head(20, 3, domain=Box(1))
    made = prevent(head, "bias", scale=10.0)
    assert made.scale == 10.0
    assert "stay inside" in made.notes[0]


def test_rows_of_one_direction_are_one_at_one_length() -> None:
    head = Head(np.array([[1.0, 0], [2, 0], [0, 1], [0, 1], [-1, -1]]))
    made = prevent(head, "norm")
    result = audit_prevented(as_stored(head, made), made, device="cpu", jobs=1)
    assert result.tied.tolist() == [0, 1, 2, 3]
    assert made_equal(head, result).tolist() == [0, 1]  # 2 and 3 were equal before


@pytest.mark.parametrize(
    ("how", "scale", "message"),
    [
        ("norm", 1e308, "rows of length 1e\\+308 do not fit into float32: choose a smaller scale"),
        ("norm", 1e39, "rows of length 1e\\+39 do not fit into float32"),
        ("norm", 1e-320, "are rounded to 0 in float32: choose a larger scale"),
        ("bias", 1e308, "the bias at scale 1e\\+308 does not fit into float64: choose a smaller"),
        ("bias", 1e39, "does not fit into float32: choose a smaller scale"),
    ],
)
def test_a_scale_that_its_type_does_not_hold_is_refused(
    how: str, scale: float, message: str
) -> None:
    head = Head(np.random.default_rng(0).normal(size=(12, 2)).astype(np.float32))
    with pytest.raises(UncorkError, match=message):
        prevent_as_stored(head, how, scale=scale, device="cpu", jobs=1)


def test_weights_that_are_all_zero_tie() -> None:
    head = Head(np.zeros((4, 2)))
    with pytest.raises(UncorkError, match="class 0 is a row of zeros"):
        prevent(head, "norm")
    made = prevent(head, "bias")
    result = audit_prevented(as_stored(head, made), made, device="cpu", jobs=1)
    assert result.counts["tied"] == 4
    assert not len(made_equal(head, result))


def test_a_vast_domain_fits_every_scale() -> None:
    made = prevent(random_head(20, 3, domain=Box(1e308)), "bias")
    assert made.scale == 1.0
