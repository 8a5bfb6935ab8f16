"""Auditing on what leaves LayerNorm, RMSNorm and linear maps: true, complete, and checkable."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.optimize import minimize

import image_oracle
from models import PP_OCR_V4
from small_heads import EXTREME, ORDINARY, quick
from uncork import (
    Audit,
    Ball,
    Box,
    Domain,
    Head,
    Image,
    LayerNorm,
    RMSNorm,
    Unbounded,
    UncorkError,
    Verdict,
    load,
    verify,
)
from uncork import audit as run_audit
from uncork.auditing import run
from uncork.auditing.backend import TorchBackend

GAINS = [None, "ones and zeros", "signs", "halves", "normal", "tiny and huge"]


def _vector(rng: np.random.Generator, kind: str | None, size: int) -> np.ndarray | None:
    if kind is None:
        return None
    return {
        "ones and zeros": lambda: rng.integers(0, 2, size),
        "signs": lambda: rng.choice([-1.0, 1.0], size),
        "halves": lambda: rng.integers(-3, 4, size) / 2,
        "normal": lambda: rng.standard_normal(size),
        "tiny and huge": lambda: rng.choice([1e-8, -1.0, 1e8], size),
    }[kind]()


@st.composite
def domains(draw: st.DrawFn, features: int) -> Domain:
    """Every kind of image of at most two latent numbers, so that Z3 can answer."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    kind = draw(st.sampled_from(["layernorm", "rmsnorm", "image of a norm", "image", "shifted"]))
    latent = draw(st.integers(1, 2)) if kind.startswith("image") else features

    def norm(size: int) -> Domain:
        gain = _vector(rng, draw(st.sampled_from(GAINS)), size)
        if kind == "rmsnorm" or draw(st.booleans()):
            return RMSNorm(gain, features=size)
        return LayerNorm(gain, _vector(rng, draw(st.sampled_from(GAINS)), size), features=size)

    if kind == "layernorm":
        offset = _vector(rng, draw(st.sampled_from(GAINS)), features)
        gain = _vector(rng, draw(st.sampled_from(GAINS)), features)
        return LayerNorm(gain, offset, features=features)
    if kind == "rmsnorm":
        return norm(features)
    plain = [Ball(1.0), Ball(0.1), Box(2), Box(0, 1), Box(0, np.inf), Box(-0.25, np.inf),
             Unbounded()]  # fmt: skip
    inner = norm(latent) if kind == "image of a norm" else draw(st.sampled_from(plain))
    offset = _vector(rng, draw(st.sampled_from(GAINS)), features)
    if kind == "shifted":
        return Image(inner, offset=offset)
    matrix = rng.integers(-2, 3, (features, latent)) if draw(st.booleans()) else None
    if matrix is None:
        matrix = rng.standard_normal((features, latent))
    return Image(inner, matrix, offset)


@st.composite
def heads(draw: st.DrawFn, makers: list[Any]) -> Head:
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    classes, features = draw(st.integers(2, 8)), draw(st.integers(1, 2))
    weight = draw(st.sampled_from(makers))(rng, classes, features)
    bias = draw(st.sampled_from([None, "normal", "halves"]))
    return Head(weight, _vector(rng, bias, classes), domain=draw(domains(features)))


def check(head: Head) -> Audit:
    found = run_audit(head, device="cpu", jobs=1)
    assert image_oracle.false_verdicts(found, head) == {}
    assert verify(found, head, jobs=1).ok
    return found


@quick(100)
@given(head=heads(list(ORDINARY.values())))
def test_every_class_of_a_small_head_gets_the_verdict_that_is_true(head: Head) -> None:
    try:
        truth = image_oracle.expected(head)
        assert list(check(head).verdicts) == truth
    except image_oracle.Unknown:
        assume(False)


@quick(40)
@given(head=heads(list(EXTREME.values())))
def test_no_verdict_is_false_whatever_the_magnitudes(head: Head) -> None:
    try:
        check(head)
    except image_oracle.Unknown:
        assume(False)


def largest_margin(head: Head, t: int) -> float:
    """max over u of z_t − max z_i by a solver that knows nothing of uncork's."""
    assert head.domain.affine(head.features).latent == head.features
    matrix, offset = head.domain.affine(head.features).parts()
    weight, bias = head.rows(0, head.classes), head.offsets
    others = np.arange(head.classes) != t
    rows = (weight[t] - weight[others]) @ matrix
    heights = bias[t] - bias[others] + (weight[t] - weight[others]) @ offset
    count = head.features
    lead = {"type": "ineq", "fun": lambda v: rows @ v[:count] + heights - v[-1],
            "jac": lambda v: np.column_stack([rows, -np.ones(len(rows))])}  # fmt: skip
    ball = {"type": "ineq", "fun": lambda v: count - v[:count] @ v[:count],
            "jac": lambda v: np.append(-2 * v[:count], 0.0)[None]}  # fmt: skip
    best = -np.inf
    for start in np.random.default_rng(t).standard_normal((3, count)):
        begin = np.append(start / 4, (rows @ start / 4 + heights).min())
        answer = minimize(
            lambda v: -v[-1], begin, jac=lambda v: np.append(np.zeros(count), -1.0),
            constraints=[lead, ball], method="SLSQP", options={"maxiter": 300, "ftol": 1e-12},
        )  # fmt: skip
        u = answer.x[:count] * min(1.0, np.sqrt(count) / np.linalg.norm(answer.x[:count]))
        best = max(best, float((rows @ u + heights).min()))
    return best


@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize("kind", ["layernorm", "layernorm with offset", "rmsnorm"])
def test_verdicts_agree_with_the_largest_margin_that_a_general_solver_finds(
    kind: str, bias: bool
) -> None:
    compared = {True: 0, False: 0}
    for seed in range(8):
        rng = np.random.default_rng(seed)
        gain, offset = rng.standard_normal((2, 4))
        domain = RMSNorm(gain) if kind == "rmsnorm" else LayerNorm(
            gain, offset if "offset" in kind else None
        )  # fmt: skip
        head = Head(rng.standard_normal((8, 4)), rng.standard_normal(8) if bias else None,
                    domain=domain)  # fmt: skip
        found = run_audit(head, device="cpu", jobs=1)
        assert not len(found.undecided)
        for t in range(8):
            margin = largest_margin(head, t)
            if abs(margin) > 1e-6:
                assert (found.verdicts[t] == Verdict.ARGMAXABLE) == (margin > 0), (seed, t, margin)
                compared[margin > 0] += 1
    assert compared[True] > 10
    assert compared[False] > 3 or not bias


@pytest.mark.parametrize("gain", [[2.0], [-1.0], [0.0]], ids=str)
def test_one_feature_that_layernorm_leaves_nothing_of(gain: list[float]) -> None:
    weight = np.array([[1.0], [2.0], [-3.0]])
    tied = run_audit(Head(weight, domain=LayerNorm(gain)), jobs=1)
    assert tied.counts["unargmaxable"] == 3  # only x = 0 arrives, where all three are equal
    moved = run_audit(Head(weight, domain=LayerNorm(gain, [0.5])), jobs=1)
    assert moved.argmaxable.tolist() == [1]
    assert not len(moved.undecided)


def test_rmsnorm_without_a_bias_changes_no_verdict_where_no_gain_is_zero() -> None:
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((300, 8)).astype(np.float32)
    gain = rng.choice([-1, 1], 8) * (0.1 + rng.random(8))
    normed = run_audit(Head(weight, domain=RMSNorm(gain)), jobs=1)
    assert (normed.verdicts == run_audit(Head(weight, domain=Unbounded()), jobs=1).verdicts).all()


def test_classes_that_differ_only_where_nothing_arrives_can_never_be_first_alone() -> None:
    rng = np.random.default_rng(0)
    weight, bias = rng.standard_normal((200, 6)).astype(np.float32), np.zeros(200)
    gain = np.array([1.0, 2.0, 0.0, 1.0, 1.0, 1.0])
    weight[7] = weight[3]
    weight[7, 2] += 1.0  # where the gain is zero
    found = run_audit(Head(weight, bias, domain=LayerNorm(gain)), jobs=1)
    assert {3, 7} <= set(found.unargmaxable.tolist())
    assert found.mixture(7).classes.tolist() == [3]  # type: ignore[union-attr]
    assert not len(found.undecided)


def larger(domain: Domain, bias: bool = True, seed: int = 0) -> Head:
    rng = np.random.default_rng(seed)
    features = 24
    weight = (0.3 * rng.standard_normal((600, features)) + 0.1).astype(np.float32)
    weight[:20] = weight.mean(axis=0) + 1e-3 * rng.standard_normal((20, features))
    return Head(weight, rng.standard_normal(600).astype(np.float32) if bias else None,
                domain=domain)  # fmt: skip


def larger_domains() -> list[Domain]:
    rng = np.random.default_rng(5)
    gain, offset = rng.standard_normal((2, 24)).astype(np.float32)
    wide = rng.standard_normal((24, 40)).astype(np.float32)
    thin = rng.standard_normal((24, 9)).astype(np.float32)
    return [
        LayerNorm(gain, offset), LayerNorm(gain), LayerNorm(features=24), RMSNorm(gain),
        Image(LayerNorm(features=40), wide, offset), Image(Box(0, 1), thin, offset),
        Image(Box(0, np.inf), thin),
    ]  # fmt: skip


@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize("domain", larger_domains(), ids=str)
def test_nothing_stays_undecided_and_a_file_of_it_verifies(
    domain: Domain, bias: bool, tmp_path: Path
) -> None:
    head = larger(domain, bias)
    found = run_audit(head, device="cpu", jobs=1)
    assert not len(found.undecided)
    found.save(tmp_path / "c.npz")
    again = Audit.load(tmp_path / "c.npz", head)
    assert again.domain == domain
    result = verify(again, head, jobs=1)
    assert result.ok
    assert result.held["unargmaxable"] == len(found.unargmaxable) > 0
    for t in found.argmaxable[::40].tolist():
        x, u = again.witness(t), again.latent_witness(t)
        assert int(np.argmax(head.rows(0, head.classes) @ x + head.offsets)) == t
        assert np.allclose(x, domain.affine(24).image(u))
        assert domain.contains(x, 1e-9)


@pytest.mark.parametrize("domain", larger_domains()[:1] + larger_domains()[4:6], ids=str)
def test_torch_and_numpy_reach_the_same_verdicts(
    domain: Domain, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    head = larger(domain)
    plain = run_audit(head, device="cpu", jobs=1)
    monkeypatch.setattr(run, "choose_backend", lambda device, jobs: TorchBackend("cpu"))
    found = run_audit(head)
    assert (found.verdicts == plain.verdicts).all()
    assert verify(found, head, device="cpu", jobs=1).ok


def test_wide_heads_behind_a_layernorm_fall_to_tilted_mixtures() -> None:
    rng = np.random.default_rng(1)
    weight = rng.standard_normal((3000, 300)).astype(np.float32)
    weight[[5, 17, 600]] = weight.mean(axis=0) + 0.01 * rng.standard_normal((3, 300))
    gain, offset = 1 + 0.2 * rng.standard_normal(300), 0.1 * rng.standard_normal(300)
    head = Head(weight, domain=LayerNorm(gain, offset))
    found = run_audit(head, device="cpu", jobs=1)
    assert found.unargmaxable.tolist() == [5, 17, 600]
    assert any(m.tilt is not None for m in found.proofs.mixtures.values())
    assert verify(found, head, jobs=1).ok


def test_pp_ocr_v4_in_a_ball_loses_the_classes_it_loses_in_a_box() -> None:
    head = load(str(PP_OCR_V4), domain="ball:100")
    found = run_audit(head, device="cpu", jobs=2)
    assert found.counts == {"argmaxable": 6423, "unargmaxable": 202, "tied": 0, "undecided": 0}


def test_an_audit_is_resumed_only_on_its_own_domain(tmp_path: Path) -> None:
    domain = larger_domains()[0]
    head = larger(domain)
    begun = run_audit(head, classes=range(300), jobs=1)
    begun.save(tmp_path / "c.npz")
    again = run_audit(head, resume=Audit.load(tmp_path / "c.npz", head), jobs=1)
    assert not len(again.undecided)
    assert (again.verdicts[:300] == begun.verdicts[:300]).all()
    with pytest.raises(UncorkError, match="the audit to resume is for layernorm"):
        run_audit(head, domain=LayerNorm(features=24), resume=begun, jobs=1)


def test_low_precision_counts_witnesses_as_inputs_of_the_head() -> None:
    head = larger(larger_domains()[0])
    found = run_audit(head, jobs=1, low_precision=True)
    assert found.low_precision is not None
    assert found.low_precision["wins"] > 0.99 * len(found.argmaxable)


def test_the_reference_algorithms_say_that_they_know_no_such_domain() -> None:
    with pytest.raises(UncorkError, match="know boxes and the unbounded domain, not layernorm"):
        run_audit(larger(LayerNorm(features=24)), algorithm="reference")
