"""The facts of the softmax-bottleneck argument, and ranks to the digit."""

from __future__ import annotations

import itertools
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models import MAGIKA
from uncork import Head, UncorkError, load
from uncork.loading.outputs import read_outputs
from uncork.theory import spectrum as spectra
from uncork.theory.bottleneck import (
    best_divergence,
    exact_rank,
    log_softmax,
    precise_rank,
    rank_bound,
    rank_of_shifts,
    shift_between,
    smallest_width,
)
from uncork.theory.outputs import (
    Outputs,
    head_spectrum,
    looks_like_log_probabilities,
    spectrum_of_head,
)
from uncork.theory.spectrum import Spectrum, spectrum

whole = st.integers(-4, 4)


def matrices(rows: int, columns: int) -> st.SearchStrategy[list[list[int]]]:
    return st.lists(
        st.lists(whole, min_size=columns, max_size=columns), min_size=rows, max_size=rows
    )


@given(matrices(4, 5), st.lists(whole, min_size=4, max_size=4))
def test_softmax_is_blind_to_shifts_of_rows(logits: list[list[int]], shift: list[int]) -> None:
    a = np.array(logits, dtype=float)
    b = a + np.array(shift, dtype=float)[:, None]
    np.testing.assert_allclose(log_softmax(a), log_softmax(b), atol=1e-12)
    found = shift_between(a, b)
    assert found is not None
    np.testing.assert_allclose(found, shift, atol=1e-12)


@given(matrices(3, 4), matrices(3, 4))
def test_every_matrix_with_the_same_softmax_is_such_a_shift(
    first: list[list[int]], second: list[list[int]]
) -> None:
    a, b = np.array(first, dtype=float), np.array(second, dtype=float)
    same = np.allclose(log_softmax(a), log_softmax(b), atol=1e-9)
    assert (shift_between(a, b) is not None) == same
    assert shift_between(a, log_softmax(a)) is not None


@given(matrices(4, 5), st.lists(whole, min_size=4, max_size=4))
def test_a_shift_moves_the_rank_by_at_most_one(logits: list[list[int]], shift: list[int]) -> None:
    moved = [[x + c for x in row] for row, c in zip(logits, shift, strict=True)]
    low, high = rank_of_shifts(logits)
    assert high - low <= 1
    assert low <= exact_rank(logits) <= high
    assert low <= exact_rank(moved) <= high
    assert rank_of_shifts(moved) == (low, high)


@given(matrices(3, 6))
def test_both_ends_of_the_range_of_ranks_are_reached(logits: list[list[int]]) -> None:
    low, high = rank_of_shifts(logits)
    centred = [[Fraction(x) - Fraction(sum(row), len(row)) for x in row] for row in logits]
    assert exact_rank(centred) == low
    reached = {low}
    for k in range(3):
        reached.add(exact_rank([[x + (i == k) for x in row] for i, row in enumerate(centred)]))
    assert high in reached


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 3), st.booleans(), st.integers(0, 2**32 - 1))
def test_a_heads_log_probabilities_have_rank_d_plus_1_or_2_to_the_digit(
    features: int, bias: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    states = rng.integers(-9, 10, (7, features)).tolist()
    weight = rng.integers(-9, 10, (8, features)).tolist()
    offsets = rng.integers(-9, 10, 8).tolist() if bias else None
    # Small whole numbers are not always in general position: the exact ranks say when they are.
    left = [[*row, 1] for row in states] if bias else states
    right = [[*row, b, 1] for row, b in zip(weight, offsets, strict=True)] if bias else [
        [*row, 1] for row in weight
    ]  # fmt: skip
    full = exact_rank(left) == len(left[0]) and exact_rank(right) == len(right[0])
    found = precise_rank(states, weight, offsets)
    assert found <= rank_bound(features, bias=bias)
    if full:
        assert found == rank_bound(features, bias=bias)
    head = Head(np.array(weight, dtype=float), offsets)
    numeric = spectrum_of_head(head, np.array(states, dtype=float))
    assert numeric.rank == found


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_the_rank_is_the_bound_by_the_stated_rule(bias: bool, dtype: str) -> None:
    rng = np.random.default_rng(0)
    states, weight = rng.standard_normal((300, 20)), rng.standard_normal((500, 20))
    offsets = rng.standard_normal(500) if bias else None
    logits = states @ weight.T + (offsets if bias else 0.0)
    stored = log_softmax(logits).astype(dtype)
    found = spectrum(Outputs(stored, "log-probabilities"))
    assert found.rank == rank_bound(20, bias=bias)
    exact = spectrum_of_head(Head(weight, offsets), states)
    assert exact.rank == rank_bound(20, bias=bias)
    if dtype == "float64":
        formed = np.linalg.svd(stored, compute_uv=False)
        np.testing.assert_allclose(exact.values, formed[: len(exact.values)], rtol=1e-10)
        np.testing.assert_allclose(found.values, formed, atol=1e-9 * formed[0])


@pytest.mark.parametrize(("centre", "ranks"), [("classes", (20, 21)), ("both", (20, 20))])
def test_centring_takes_the_shift_and_the_bias_away(centre: str, ranks: tuple[int, int]) -> None:
    rng = np.random.default_rng(1)
    states, weight = rng.standard_normal((90, 20)), rng.standard_normal((70, 20))
    for offsets, rank in ((None, ranks[0]), (rng.standard_normal(70), ranks[1])):
        logits = states @ weight.T + (0.0 if offsets is None else offsets)
        for kind, values in (("logits", logits), ("log-probabilities", log_softmax(logits))):
            assert spectrum(Outputs(values, kind, centre)).rank == rank  # type: ignore[arg-type]
        assert spectrum_of_head(Head(weight, offsets), states, centre).rank == rank  # type: ignore[arg-type]


def test_a_real_heads_log_probabilities_have_the_rank_of_the_bound() -> None:
    head = load(MAGIKA)  # 214 classes, 512 features: the classes are what limits it
    states = np.random.default_rng(0).standard_normal((600, head.features))
    assert spectrum_of_head(head, states).rank == head.classes
    narrow = head.replace(weight=np.asarray(head.weight)[:, :40])
    assert spectrum_of_head(narrow, states[:, :40]).rank == rank_bound(40, bias=True)


@pytest.mark.parametrize("contexts", [900, 300])
def test_a_sketch_finds_what_all_singular_values_show(
    contexts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(2)
    states, weight = rng.standard_normal((contexts, 30)), rng.standard_normal((600, 30))
    values = log_softmax(states @ weight.T).astype(np.float32)
    outputs = Outputs(values, "log-probabilities")
    every = spectrum(outputs)
    monkeypatch.setattr(spectra, "_EXACT_WIDTH", 8)
    monkeypatch.setattr(spectra, "_EXACT_WORK", 0.0)
    monkeypatch.setattr(spectra, "_FIRST_SKETCH", 16)  # too few at first: it must grow
    monkeypatch.setattr(spectra, "_PANEL_BYTES", 1 << 17)
    sketched = spectrum(outputs)
    assert 32 <= len(sketched.values) <= 128
    assert (sketched.rank, sketched.settled, sketched.complete) == (31, True, False)
    np.testing.assert_allclose(sketched.values[:31], every.values[:31], rtol=1e-6)
    assert sketched.energy == pytest.approx(every.energy)
    assert [sketched.directions(s) for s in (0.9, 0.99)] == [
        every.directions(s) for s in (0.9, 0.99)
    ]
    few = spectrum(outputs, most=20)
    assert (few.rank, few.settled) == (20, False)
    assert few.directions(0.9999999) is None


def test_panels_keep_small_singular_values() -> None:
    """A Gram matrix in float64 would lose everything below 1e-8 of the largest."""
    rng = np.random.default_rng(3)
    left = np.linalg.qr(rng.standard_normal((400, 12)))[0]
    right = np.linalg.qr(rng.standard_normal((12, 12)))[0]
    true = np.logspace(0, -11, 12)
    matrix = (left * true) @ right
    factor = spectra.triangular((matrix[i : i + 37] for i in range(0, 400, 37)), 12)
    np.testing.assert_allclose(np.linalg.svd(factor, compute_uv=False), true, rtol=1e-3)


def test_effective_rank_and_energy_are_what_their_names_say() -> None:
    even = Spectrum(np.full(7, 2.0), (9, 7), 28.0)
    assert even.effective_rank == pytest.approx(7)
    assert [even.directions(s) for s in (0.1, 0.5, 1.0)] == [1, 4, 7]
    one = Spectrum(np.array([3.0, 0.0]), (2, 2), 9.0)
    assert (one.effective_rank, one.rank, one.directions(0.999)) == (1.0, 1, 1)
    assert Spectrum(np.zeros(2), (2, 2), 0.0).rank == 0
    weight = np.diag([4.0, 3.0, 2.0])
    assert head_spectrum(Head(weight)).values.tolist() == pytest.approx([4, 3, 2])


def test_the_smallest_width_of_a_distribution() -> None:
    assert smallest_width([[1, 2, 3], [1, 2, 3]]) == 1
    assert smallest_width([[1, 2, 3], [1, 2, 3]], bias=True) == 0
    assert smallest_width([[5, 5, 5], [7, 7, 7]]) == 0
    assert smallest_width([[Fraction(1, 3), 0], [0, Fraction(1, 7)]]) == 1
    rng = np.random.default_rng(4)
    states, weight, offsets = (rng.standard_normal(s) for s in ((40, 6), (30, 6), (30,)))
    logits = log_softmax(states @ weight.T + offsets)
    assert smallest_width(logits, bias=True) == 6
    assert smallest_width(logits) == 7


@settings(max_examples=40)
@given(matrices(4, 5), st.booleans())
def test_no_head_is_narrower_and_one_is_as_wide(logits: list[list[int]], bias: bool) -> None:
    width = smallest_width(logits, bias=bias)
    a = np.array(logits, dtype=float)
    centred = a - a.mean(axis=1, keepdims=True)
    offsets = centred.mean(axis=0) if bias else np.zeros(5)
    left, values, right = np.linalg.svd(centred - offsets, full_matrices=False)
    states, weight = left[:, :width] * values[:width], right[:width].T
    np.testing.assert_allclose(log_softmax(states @ weight.T + offsets), log_softmax(a), atol=1e-9)
    assert smallest_width(a, bias=bias) == width


def test_divergence_falls_with_the_width_and_is_none_at_the_smallest() -> None:
    rng = np.random.default_rng(5)
    p = np.exp(log_softmax(1.5 * rng.standard_normal((6, 5))))
    nats = [best_divergence(p, d, tries=3).nats for d in range(5)]
    assert smallest_width(np.log(p)) == 4
    assert nats[4] < 1e-7
    assert all(a > b for a, b in itertools.pairwise(nats))
    assert nats[0] == pytest.approx(float((p * np.log(p)).sum(axis=1).mean() + np.log(5)))
    with_bias = best_divergence(p, 0, bias=True).nats
    mean = p.mean(axis=0)
    assert with_bias == pytest.approx(float((p * np.log(p / mean)).sum(axis=1).mean()), abs=1e-7)
    assert best_divergence(p, 3, bias=True, tries=3).agreed >= 1


def test_a_rank_one_divergence_is_the_least_a_fine_search_finds() -> None:
    """Two contexts and three classes: the head's direction is searched on a fine grid instead."""
    p = np.array([[0.7, 0.2, 0.1], [0.1, 0.3, 0.6]])
    best = np.inf
    for angle in np.linspace(0, np.pi, 721):
        v = np.array([np.cos(angle), np.sin(angle), 0.0])
        total = 0.0
        for row in p:
            scale = np.linspace(-12, 12, 961)
            log_q = log_softmax(scale[:, None] * v)
            total += float((row * (np.log(row) - log_q)).sum(axis=1).min()) / 2
        best = min(best, total)
    found = best_divergence(p, 1).nats
    assert found <= best + 1e-6
    assert found >= best - 2e-3


@pytest.mark.parametrize(
    ("values", "kind", "message"),
    [
        (np.full((3, 3), -np.inf), "log-probabilities", "probability of zero has no logarithm"),
        (np.zeros((3, 3)), "log-probabilities", "sums to 3 as probabilities"),
        (np.zeros(3), "logits", "expected contexts × classes"),
        (np.zeros((1, 3)), "logits", "expected contexts × classes"),
        (np.zeros((3, 3), dtype=int), "logits", "floating-point"),
    ],
)
def test_outputs_that_are_none_are_refused(values: np.ndarray, kind: str, message: str) -> None:
    with pytest.raises(UncorkError, match=message):
        Outputs(values, kind)  # type: ignore[arg-type]


def test_bad_hidden_states_and_probabilities_are_refused() -> None:
    head = Head(np.eye(3))
    with pytest.raises(UncorkError, match="expected contexts × 3 features"):
        spectrum_of_head(head, np.zeros((4, 2)))
    with pytest.raises(UncorkError, match="must be finite"):
        spectrum_of_head(head, np.full((4, 3), np.nan))
    with pytest.raises(UncorkError, match="summing to 1"):
        best_divergence([[0.5, 0.6]], 1)
    with pytest.raises(UncorkError, match="same size"):
        shift_between(np.eye(2), np.eye(3))


def test_outputs_are_read_from_files(tmp_path: Path) -> None:
    values = log_softmax(np.random.default_rng(0).standard_normal((2, 5, 7))).astype(np.float32)
    np.save(tmp_path / "a.npy", values)
    read = read_outputs(tmp_path / "a.npy")
    assert read.shape == (10, 7)
    assert looks_like_log_probabilities(read)
    assert not looks_like_log_probabilities(read + 1)
    np.savez(tmp_path / "b.npz", first=values[0], second=values[1])
    with pytest.raises(UncorkError, match="--tensor"):
        read_outputs(tmp_path / "b.npz")
    assert (read_outputs(tmp_path / "b.npz", "second") == values[1]).all()


def test_narrow_values_in_a_wide_type_count_as_narrow() -> None:
    values = np.random.default_rng(0).standard_normal((50, 40))
    assert Outputs(values, "logits").dtype == "float64"
    assert Outputs(values.astype(np.float32).astype(float), "logits").dtype == "float32"


@pytest.mark.parametrize("scale", [1e-310, 1e-200, 1.0, 1e160, 1e307])
@pytest.mark.filterwarnings("error")
def test_shares_of_a_heads_spectrum_do_not_depend_on_its_scale(scale: float) -> None:
    weight = np.array([[3.0, 0, 0], [0, 2, 0], [0, 0, 1], [0, 0, 0]])
    hidden = np.eye(3)
    for found in (
        head_spectrum(Head(weight * scale)),
        spectrum_of_head(Head(weight * scale), hidden, "both"),
    ):
        assert found.directions(0.99) == found.rank
        plain = Spectrum(found.values / found.values[0], found.shape, 0.0)
        assert found.effective_rank == pytest.approx(plain.effective_rank)
    assert head_spectrum(Head(weight * scale)).directions(0.5) == 1  # 9 of 14


def test_a_head_of_zeros_has_no_direction() -> None:
    found = head_spectrum(Head(np.zeros((4, 3))))
    assert (found.rank, found.effective_rank, found.directions(0.9)) == (0, 0.0, 0)


def test_an_empty_array_is_refused_when_it_is_read(tmp_path: Path) -> None:
    for shape in ((0, 3), (3, 0), (2, 0, 3)):
        np.save(tmp_path / "a.npy", np.zeros(shape))
        with pytest.raises(UncorkError, match="is empty: the rank needs two contexts or more"):
            read_outputs(tmp_path / "a.npy")


@pytest.mark.filterwarnings("error")
def test_outputs_whose_squares_overflow_are_refused() -> None:
    values = np.random.default_rng(0).normal(size=(9, 4))
    for scale in (1e154, 1e160, 1e300):
        with pytest.raises(UncorkError, match="exceed what float64 holds"):
            Outputs(values * scale, "logits")
    assert spectrum(Outputs(values * 1e150, "logits").centred("classes")).rank == 3
