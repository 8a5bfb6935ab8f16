"""All first guesses at once: what their product proves is true, in fractions, and is nearly all."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oracle import exact_rows, lies_in, logit
from small_heads import EXTREME, ORDINARY, quick
from uncork import Ball, Box, Domain, Head, LayerNorm, RMSNorm, Unbounded, audit, verify
from uncork.auditing.backend import Backend, TorchBackend
from uncork.auditing.certify.arithmetic import DOUBLE, SINGLE, TENSOR_CORES
from uncork.auditing.certify.certifier import Certifier
from uncork.auditing.certify.guesses import Coordinates, Guesses, _Product, coordinates_of
from uncork.auditing.certify.products import Skyline
from uncork.auditing.certify.verify import verify_proofs
from uncork.auditing.proofs.formula import Formula

ARITHMETIC = ["numpy float32", "torch bfloat16", "torch float64"]


def backend_for(kind: str, panel: int) -> tuple[Backend, bool]:
    """A backend, its tiles small enough that these heads have several, and whether it is strict."""
    if kind.startswith("torch"):
        pytest.importorskip("torch")
    backend = TorchBackend("cpu") if kind.startswith("torch") else Backend(1)
    backend.panel = panel
    return backend, kind == "torch float64"


def guess_of(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """K, T and the centre that whiten some rows, as well as floats do it."""
    with np.errstate(all="ignore"):
        centre = np.nan_to_num(rows.mean(axis=0))
        away = np.nan_to_num(rows - centre)
        covariance = np.nan_to_num(away.T @ away / len(rows)) + 1e-12 * np.eye(rows.shape[1])
        try:
            factor = np.linalg.cholesky(covariance)
        except np.linalg.LinAlgError:
            factor = np.eye(rows.shape[1])
        return np.linalg.inv(factor), factor, centre


def guesses_of(head: Head, kind: str, panel: int = 5, groups: Sequence[np.ndarray] = ()) -> Guesses:
    """The first guesses of a head on a plain domain, in its own whitened coordinates."""
    rows = head.rows(0, head.classes)
    to_input, back, centre = guess_of(rows)
    backend, strict = backend_for(kind, panel)
    with np.errstate(all="ignore"):
        formula = Formula((to_input.T @ to_input).astype(np.float32), centre)
        points = backend.asarray((rows - centre) @ to_input.T)
    certifier = Certifier(head, device=backend)
    coordinates = Coordinates(back, centre, points)
    return Guesses(certifier, backend, formula, coordinates, groups, strict=strict)


def proven(guesses: Guesses) -> tuple[dict[int, float], dict[int, float]]:
    """Class → margin of those that are proven, and the scales of all."""
    margins, scales = {}, {}
    for found in guesses.run():
        for t, scale, margin in zip(found.classes, found.scales, found.margins, strict=True):
            scales[int(t)] = float(scale)
            if margin > 0:
                margins[int(t)] = float(margin)
    return margins, scales


def exact_leads(guesses: Guesses, margins: dict[int, float], scales: dict[int, float]) -> Any:
    """The slow twin: for each class proven its input, and its lead there in fractions."""
    head, formula = guesses.head, guesses.formula
    rows = exact_rows(head)
    for t in margins:
        scale = np.array([scales[t]], dtype=np.float32)
        u = formula.inputs(head, np.array([t]), scale, guesses.backend)[0]
        at = [Fraction(v) for v in guesses.backend.get(u).tolist()]
        x = guesses.latent.forward_exactly(at)
        own = logit(rows[t], x)
        yield t, at, min((own - logit(row, x) for row in rows if row != rows[t]), default=None)


def assert_true(guesses: Guesses) -> dict[int, float]:
    margins, scales = proven(guesses)
    for t, at, lead in exact_leads(guesses, margins, scales):
        assert lies_in(guesses.certifier.base, at)
        assert lead is None or lead >= Fraction(margins[t]) > 0
    return margins


@pytest.mark.parametrize("kind", ARITHMETIC)
@given(
    maker=st.sampled_from(sorted({**ORDINARY, **EXTREME})),
    seed=st.integers(0, 2**32 - 1),
    bias=st.sampled_from([0.0, 1.0, 1e-3, 1e20]),
    domain=st.sampled_from([Unbounded(), Box(100), Box(-3, 5), Ball(2)]),
)
@quick(60)
def test_a_margin_is_never_above_the_true_lead(
    kind: str, maker: str, seed: int, bias: float, domain: Domain
) -> None:
    rng = np.random.default_rng(seed)
    weight = {**ORDINARY, **EXTREME}[maker](rng, 12, 3)
    if not np.isfinite(weight).all():
        return
    offsets = rng.standard_normal(12) * bias if bias else None
    assert_true(guesses_of(Head(weight, offsets, domain=domain), kind))


@pytest.mark.parametrize("kind", ARITHMETIC)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("what", ["plain", "turned", "half of the coordinates"])
def test_every_score_of_a_tile_bounds_its_logit(kind: str, dtype: Any, what: str) -> None:
    """In coordinates as good as can be only rounding is left to bound: of the sums where rows are
    float32, of the rows where they are not. In half of them, the other half."""
    rng = np.random.default_rng(8)
    weight = rng.standard_normal((20, 16)).astype(dtype)
    head = Head(weight, domain=Unbounded())
    guesses = guesses_of(head, kind, panel=32)
    back = np.eye(16) if what == "plain" else np.linalg.qr(rng.standard_normal((16, 16)))[0]
    back = back[:, :8] if what.startswith("half") else back
    guesses.formula = Formula(np.eye(16, dtype=np.float32), np.zeros(16))
    guesses.width = back.shape[1]
    points = guesses.backend.asarray(weight.astype(np.float64) @ back)
    guesses.coordinates = Coordinates(back, np.zeros(16), points)
    product = _Product(guesses, guesses._measured())
    scores = guesses.backend.product(product._panel("left", 0), product._panel("right", 0))
    scores = guesses.backend.get(scores).astype(np.float64)
    scales = product.measured.scales
    inputs = guesses.formula.inputs(head, np.arange(20), scales, guesses.backend)
    inputs = guesses.backend.get(inputs)
    rows = exact_rows(head)
    for t in range(20):
        at = [Fraction(v) / Fraction(float(scales[t])) for v in inputs[t].tolist()]
        true = [logit(row, at) for row in rows]
        for i in range(20):
            assert Fraction(float(scores[i, t])) >= true[i]
            assert Fraction(float(scores[t, i])) >= true[i]
        assert Fraction(float(product.own[t])) <= true[t]
        # And not by much: the bound is of use.
        assert what.startswith("half") or scores[t, t] - product.own[t] < 0.03 * scores[t, t]


@pytest.mark.parametrize("kind", ARITHMETIC)
@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
def test_nearly_all_classes_of_an_ordinary_head_are_proven(kind: str, bias: bool) -> None:
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((80, 16)).astype(np.float32)
    head = Head(weight, 0.01 * rng.standard_normal(80) if bias else None, domain=Box(100))
    winners = (weight @ weight.T).argmax(axis=1) == np.arange(80)
    assert len(assert_true(guesses_of(head, kind, panel=64))) >= 0.9 * winners.sum()


@pytest.mark.parametrize("kind", ARITHMETIC)
@pytest.mark.parametrize("gap", [0.0, 2.0**-52, 2.0**-40, 2.0**-23, 2.0**-9])
def test_rows_that_nearly_tie_are_told_apart_or_left_open(kind: str, gap: float) -> None:
    rng = np.random.default_rng(1)
    weight = rng.standard_normal((40, 4))
    weight[7] = weight[3] * (1 + gap)
    weight[9] = weight[3] * (1 - gap)
    margins = assert_true(guesses_of(Head(weight, domain=Unbounded()), kind))
    if gap == 0:
        assert not {3, 7, 9} & set(margins)


@pytest.mark.parametrize("kind", ARITHMETIC)
def test_equal_classes_stand_behind_their_first_only_if_they_are_equal(kind: str) -> None:
    weight = np.random.default_rng(2).standard_normal((30, 8)) * 4
    weight[20] = weight[4]
    head = Head(weight, domain=Unbounded())
    first = 4 in assert_true(guesses_of(head, kind))
    assert not first
    margins = assert_true(guesses_of(head, kind, groups=[np.array([4, 20])]))
    assert 4 in margins
    assert 20 not in margins
    # A group that says more than is true, or says it twice, hides no rival.
    groups = [np.array([4, 11, 20]), np.array([20, 4])]
    claimed = guesses_of(head, kind, groups=groups)
    assert np.setdiff1d(np.arange(30), claimed.order).tolist() == [20]


@pytest.mark.parametrize("kind", ARITHMETIC)
@given(seed=st.integers(0, 2**32 - 1), what=st.sampled_from(["points", "back", "centre", "scale"]))
@quick(25)
def test_false_coordinates_prove_nothing_false(kind: str, seed: int, what: str) -> None:
    rng = np.random.default_rng(seed)
    head = Head(rng.standard_normal((14, 3)), domain=Ball(5))
    guesses = guesses_of(head, kind)
    c = guesses.coordinates
    size = 10.0 ** rng.integers(-6, 3)
    back, centre, points = c.back, c.centre, guesses.backend.get(c.points)
    if what == "points":
        points = points + size * rng.standard_normal(points.shape)
    elif what == "back":
        back = back + size * rng.standard_normal(back.shape)
    elif what == "centre":
        centre = centre + size * rng.standard_normal(3)
    else:
        back, points = back * size, points / size
    guesses.coordinates = Coordinates(back, centre, guesses.backend.asarray(points))
    assert_true(guesses)


@pytest.mark.parametrize("kind", ARITHMETIC)
def test_what_would_overflow_is_refused(kind: str) -> None:
    rng = np.random.default_rng(3)
    guesses = guesses_of(Head(rng.standard_normal((20, 4)), domain=Unbounded()), kind)
    c = guesses.coordinates
    points = guesses.backend.get(c.points).astype(np.float64)
    points[5] *= 1e16
    guesses.coordinates = Coordinates(c.back, c.centre, guesses.backend.asarray(points))
    assert proven(guesses)[0] == {}


@pytest.mark.parametrize("kind", ARITHMETIC)
@pytest.mark.parametrize("scale", [1e-30, 1e-8, 1e8, 1e30])
def test_the_unit_of_the_weights_does_not_matter(kind: str, scale: float) -> None:
    rng = np.random.default_rng(4)
    weight = rng.standard_normal((40, 10))
    head = Head(weight * scale, domain=Unbounded())
    found = guesses_of(head, kind)
    if np.isfinite(found.formula.transform).all() and found.formula.transform.any():
        assert len(assert_true(found)) > 30


def pooled(rng: np.random.Generator, what: str) -> Domain:
    gain = rng.uniform(0.5, 2, 8)
    if what == "RMSNorm":
        return RMSNorm(gain)
    return LayerNorm(gain, 0.1 * rng.standard_normal(8) if what == "LayerNorm" else np.zeros(8))


@pytest.mark.slow
@pytest.mark.parametrize("what", ["RMSNorm", "LayerNorm", "LayerNorm without offset"])
@pytest.mark.parametrize("on", ["numpy", "torch"])
def test_guesses_behind_a_norm_are_proven_of_the_stored_rows(
    what: str, on: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from uncork.auditing import run

    if on == "torch":
        pytest.importorskip("torch")
        monkeypatch.setattr(run, "choose_backend", lambda device, jobs: TorchBackend("cpu"))
    rng = np.random.default_rng(5)
    seen: list[Guesses] = []
    begin = Guesses.run
    monkeypatch.setattr(Guesses, "run", lambda self: [seen.append(self), begin(self)][1])
    head = Head(rng.standard_normal((120, 8)).astype(np.float32), domain=pooled(rng, what))
    found = audit(head, device="cpu", jobs=1)
    assert not len(found.undecided)
    assert len(seen) == 1
    assert verify(found, head, device="cpu", jobs=1).ok
    margins = assert_true(seen[0])
    assert len(margins) > 40
    # Whoever has only the certificate proves as much.
    certifier, formula = Certifier(head, device=Backend(1)), found.proofs.formula
    coordinates = coordinates_of(formula, certifier)
    assert coordinates is not None
    scales = np.where(found.proofs.scales > 0, found.proofs.scales, 0)
    again = Guesses(certifier, Backend(1), formula, coordinates, scales=scales)
    assert len(assert_true(again)) >= len(margins)


def test_verifying_proves_formulas_together_and_no_slower_twin_disagrees(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(6)
    weight = rng.standard_normal((500, 10)).astype(np.float32)  # more would go by their winners
    weight[30] = weight[17]
    head = Head(weight, 0.1 * rng.standard_normal(500)[np.arange(500) % 17], domain=Box(10))
    found = audit(head, device="cpu", jobs=1)
    backend = Backend(1)
    coordinates = coordinates_of(found.proofs.formula, Certifier(head, device=backend))
    assert coordinates is not None
    together, alone = found.proofs.copy(), found.proofs.copy()
    assert verify_proofs(Certifier(head, device=backend), together, backend).ok
    monkeypatch.setattr("uncork.auditing.certify.verify._WIDTHS", 10**9)
    assert verify_proofs(Certifier(head, device=backend), alone, backend).ok
    by_formula = found.proofs.scales > 0
    assert by_formula.sum() > 250
    close = np.isclose(together.margins[by_formula], alone.margins[by_formula], rtol=1e-3)
    assert close.mean() > 0.99


def test_a_forged_scale_is_refused_together_too() -> None:
    rng = np.random.default_rng(7)
    head = Head(rng.standard_normal((400, 6)).astype(np.float32), domain=Box(10))
    found = audit(head, device="cpu", jobs=1)
    t = int(np.flatnonzero(found.proofs.scales > 0)[3])
    found.proofs.scales[t] *= 2  # out of the box
    assert list(verify(found, head, device="cpu", jobs=1).failed) == [t]


@pytest.mark.parametrize("shape", [(700, 600), (600, 700)])
def test_zeros_left_out_of_a_product_change_nothing(shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(9)
    x = rng.integers(-9, 9, (5, shape[0])).astype(np.float64)  # sums of these are exact
    dense = rng.integers(-9, 9, shape).astype(np.float64)
    for matrix in (dense, np.tril(dense), np.triu(dense, 90), 0 * dense):
        assert (Skyline(matrix, Backend(1)).times(x) == x @ matrix).all()


def test_the_bounds_assumed_of_sums_are_in_order() -> None:
    assert DOUBLE.share(100) < SINGLE.share(100) < TENSOR_CORES.share(100) < 1e-4
    assert SINGLE.share(1) >= 2.0**-24
    for arithmetic, bits in ((DOUBLE, 52), (SINGLE, 23), (TENSOR_CORES, 7)):
        assert arithmetic.spacing == 2.0 ** -(bits + 1)
        assert ml_dtypes.finfo(arithmetic.dtype).nmant == bits
