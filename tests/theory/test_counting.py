"""How many rankings there are: the paper's tables, OEIS, and what follows from the numbers."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from small_heads import quick
from uncork import UncorkError, audit
from uncork.theory import counting
from uncork.theory.circle import circle_head

# Tables 2 and 3 of Grivas et al. (2022), below the diagonal where all C! rankings are feasible.
TABLE_2 = {
    3: [2], 4: [2, 12], 5: [2, 20, 72], 6: [2, 30, 172, 480], 7: [2, 42, 352, 1512, 3600],
    8: [2, 56, 646, 3976, 14184, 30240], 9: [2, 72, 1094, 9144, 45992, 143712, 282240],
    10: [2, 90, 1742, 18990, 128288, 557640, 1575648, 2903040],
}  # fmt: skip
TABLE_3 = {
    3: [4], 4: [7, 18], 5: [11, 46, 96], 6: [16, 101, 326, 600], 7: [22, 197, 932, 2556, 4320],
    8: [29, 351, 2311, 9080, 22212, 35280],
    9: [37, 583, 5119, 27568, 94852, 212976, 322560],
    10: [46, 916, 10366, 73639, 342964, 1066644, 2239344, 3265920],
}  # fmt: skip
A071223 = [
    2, 2, 6, 2, 12, 24, 2, 20, 72, 120, 2, 30, 172, 480, 720, 2, 42, 352, 1512, 3600, 5040,
    2, 56, 646, 3976, 14184, 30240, 40320, 2, 72, 1094, 9144, 45992, 143712, 282240, 362880,
    2, 90, 1742, 18990, 128288, 557640, 1575648, 2903040, 3628800,
    2, 110, 2642, 36410, 318188, 1840520, 7152048, 18659520, 32659200, 39916800,
]  # fmt: skip
sizes = st.tuples(st.integers(1, 40), st.integers(1, 40))


@pytest.mark.parametrize(("bias", "published"), [(False, TABLE_2), (True, TABLE_3)])
def test_the_papers_tables_entry_by_entry(bias: bool, published: dict[int, list[int]]) -> None:
    expected = [
        published.get(c, []) + [math.factorial(c)] * (10 - len(published.get(c, [])))
        for c in range(1, 11)
    ]
    assert counting.table(bias) == expected


def test_the_first_terms_of_oeis_a071223() -> None:
    assert [counting.rankings(n, k) for n in range(2, 12) for k in range(1, n)] == A071223


def stirling(n: int, k: int) -> int:
    """Permutations of n with k cycles, counted one by one."""
    found = 0
    for permutation in itertools.permutations(range(n)):
        left, cycles = set(range(n)), 0
        while left:
            cycles += 1
            at = left.pop()
            while (at := permutation[at]) in left:
                left.remove(at)
        found += cycles == k
    return found


@pytest.mark.parametrize("classes", [2, 3, 4, 5, 6])
def test_good_and_tidemans_sums_over_permutations_by_cycles(classes: int) -> None:
    c = [stirling(classes, classes - k) for k in range(classes)]
    for d in range(1, classes - 1):
        assert counting.rankings(classes, d, bias=True) == sum(c[: d + 1])
        alternating = sum((-1) ** k * c[k] for k in range(d + 1))
        assert counting.bounded_rankings(classes, d, bias=True) == abs(alternating)


@given(sizes)
@quick(80)
def test_covers_recurrence(size: tuple[int, int]) -> None:
    n, k = size[0] + 1, size[1] + 1
    for bias in (False, True):
        grown = counting.rankings(n + 1, k, bias=bias)
        before = counting.rankings(n, k, bias=bias) + n * counting.rankings(n, k - 1, bias=bias)
        assert grown == (before if k < n else math.factorial(n + 1))


@given(sizes)
@quick(80)
def test_regions_are_bounded_or_unbounded_and_the_unbounded_are_those_without_bias(
    size: tuple[int, int],
) -> None:
    every = counting.rankings(*size, bias=True)
    bounded = counting.bounded_rankings(*size, bias=True)
    assert every == bounded + counting.unbounded_rankings(*size, bias=True)
    assert counting.bounded_rankings(*size) == 0
    if size[1] < size[0] - 1:
        assert counting.unbounded_rankings(*size, bias=True) == counting.rankings(*size)
    assert counting.share(*size, bias=True) == Fraction(every, math.factorial(size[0]))


def test_two_thousand_classes_and_a_hundred_features() -> None:
    assert counting.rankings(2000, 100, bias=True).bit_length() == 1564


@pytest.mark.parametrize(
    ("classes", "features"),
    [(3, 1), (5, 2), (30, 3), (30, 28), (30, 29), (300, 7), (300, 290), (300, 297), (1500, 90)],
)
@pytest.mark.parametrize("bias", [False, True])
def test_logarithms_are_within_their_stated_error(classes: int, features: int, bias: bool) -> None:
    for bounded, exact in (
        (False, counting.rankings(classes, features, bias=bias)),
        (True, counting.bounded_rankings(classes, features, bias=bias)),
    ):
        found = counting.log_rankings(classes, features, bias=bias, bounded=bounded)
        if exact == 0:
            assert found == -math.inf
        else:
            assert abs(found - math.log(exact)) <= counting.log_error(classes, found)
            assert counting.log_error(classes, found) < 1e-10


def test_a_large_vocabulary_has_a_logarithm() -> None:
    found = counting.log_rankings(256_000, 16)
    # 2·e_15(2 … C−1) ≈ 2·(C²/2)¹⁵/15!, which is what it tends to.
    rough = math.log(2) + 15 * math.log(256_000**2 / 2) - math.lgamma(16)
    assert found == pytest.approx(rough, abs=1e-2)


def test_two_features_let_every_class_win_yet_the_share_of_rankings_vanishes() -> None:
    for classes in (3, 50, 2000):
        assert audit(circle_head(classes)).counts["argmaxable"] == classes
    shares = [counting.share(classes, 2) for classes in (3, 5, 10, 20)]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] == 1
    assert shares[-1] < 1e-15


@pytest.mark.parametrize(("classes", "features"), [(0, 1), (-3, 2), (3, 0)])
def test_sizes_that_mean_nothing_are_refused(classes: int, features: int) -> None:
    with pytest.raises(UncorkError, match="at least one"):
        counting.rankings(classes, features)


def test_more_classes_than_fit_into_memory_are_refused() -> None:
    for bias in (False, True):
        with pytest.raises(UncorkError, match="1,000,000,000 classes are too many"):
            counting.log_rankings(10**9, 3, bias=bias)
    assert counting.log_rankings(10**9, 1) == math.log(2)


def test_a_circle_too_crowded_for_float64_is_refused() -> None:
    with pytest.raises(UncorkError, match="lost in rounding"):
        circle_head(2_000_000)
    np.testing.assert_allclose(np.linalg.norm(circle_head(7).weight, axis=1), 1)
