"""Laws that hold for every row of logits, searched for counterexamples."""

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

import uncork.nn.functional as F  # noqa: E402

number = st.floats(-20, 20, allow_nan=False, width=32)
row = st.lists(number, min_size=1, max_size=12).map(
    lambda values: torch.tensor(values, dtype=torch.float64)
)
alphas = st.one_of(st.sampled_from([1.0, 1.5, 2.0]), st.floats(1.0, 2.0), st.floats(2.0, 5.0))
several = settings(max_examples=80, deadline=None)


def tolerance(alpha: float) -> float:
    return 1e-10 if alpha <= 2 else 1e-6  # above 2 exp_α has vertical tangents


@several
@given(row, alphas)
def test_entmax_is_a_distribution_in_the_order_of_its_logits(z, alpha):
    p = F.entmax(z, alpha)
    assert (p >= 0).all()
    assert float(p.sum()) == pytest.approx(1, abs=1e-12)
    order = z.argsort()
    assert (p[order].diff() >= -1e-15).all()


@several
@given(row, alphas, st.floats(-1000, 1000))
def test_entmax_ignores_a_constant_added_to_the_row(z, alpha, shift):
    torch.testing.assert_close(
        F.entmax(z + shift, alpha), F.entmax(z, alpha), atol=1e-3 * tolerance(alpha) ** 0.5, rtol=0
    )


@several
@given(row, alphas, st.randoms(use_true_random=False))
def test_entmax_follows_a_permutation_of_its_logits(z, alpha, random):
    order = list(range(len(z)))
    random.shuffle(order)
    order = torch.tensor(order)
    torch.testing.assert_close(
        F.entmax(z[order], alpha), F.entmax(z, alpha)[order], atol=tolerance(alpha), rtol=0
    )


@several
@given(row, st.floats(1.0, 2.0))
def test_entmax_lies_between_softmax_and_sparsemax(z, alpha):
    """Its largest probability does: it grows with α."""
    soft, between, sparse = (F.entmax(z, a).max() for a in (1.0, alpha, 2.0))
    assert soft - 1e-12 <= between <= sparse + 1e-12


@several
@given(row, st.floats(1.01, 3.0), st.floats(0.0, 1.0))
def test_the_support_shrinks_as_alpha_grows(z, alpha, more):
    wide = F.entmax(z, alpha, return_support=True).support_size
    narrow = F.entmax(z, alpha + more, return_support=True).support_size
    surely_wide = int((F.entmax(z, alpha) > 1e-9).sum())
    surely_narrow = int((F.entmax(z, alpha + more) > 1e-9).sum())
    assert int(narrow) <= int(wide) or surely_narrow <= surely_wide  # up to rounding at the edge


@several
@given(row, st.floats(1.05, 3.0), st.floats(-1, 1))
def test_alpha_relu_is_non_negative_in_order_and_not_shift_invariant(z, alpha, tau):
    p = F.alpha_relu(z, alpha, tau)
    assert (p >= 0).all()
    assert (p[z.argsort()].diff() >= 0).all()
    top = z.max()
    if (alpha - 1) * top - tau > 0.1:
        assert F.alpha_relu(z + 1, alpha, tau).max() > p.max()


@several
@given(row, st.floats(1.1, 10.0))
def test_normmax_is_a_distribution_in_the_order_of_its_logits(z, alpha):
    p = F.normmax(z, alpha)
    assert (p >= 0).all()
    assert float(p.sum()) == pytest.approx(1, abs=1e-12)
    assert (p[z.argsort()].diff() >= -1e-12).all()


@several
@given(row, st.floats(0.0, 12.0))
def test_budget_fills_its_budget_within_the_unit_box(z, k):
    p = F.budget(z, k)
    assert (p >= 0).all()
    assert (p <= 1).all()
    assert float(p.sum()) == pytest.approx(min(k, len(z)), abs=1e-9)


LOSSES = {
    "softmax": F.softmax_loss,
    "sparsemax": F.sparsemax_loss,
    "entmax": lambda z, y: F.entmax_loss(z, y, alpha=1.3),
    "entmax 1.5": F.entmax_loss,
    "entmax 3": lambda z, y: F.entmax_loss(z, y, alpha=3.0),
    "alpha_relu": lambda z, y: F.alpha_relu_loss(z, y, tau=0.2),
    "alpha_relu 2": lambda z, y: F.alpha_relu_loss(z, y, alpha=2.0, tau=-0.1),
    "normmax": F.normmax_loss,
}
MAPS = {
    "softmax": lambda z: torch.softmax(z, -1),
    "sparsemax": F.sparsemax,
    "entmax": lambda z: F.entmax(z, 1.3),
    "entmax 1.5": F.entmax,
    "entmax 3": lambda z: F.entmax(z, 3.0),
    "alpha_relu": lambda z: F.alpha_relu(z, 1.5, 0.2),
    "alpha_relu 2": lambda z: F.alpha_relu(z, 2.0, -0.1),
    "normmax": F.normmax,
}


@pytest.mark.parametrize("name", LOSSES)
@settings(max_examples=40, deadline=None)
@given(row, st.integers(0, 11))
def test_a_loss_is_never_negative_and_zero_only_at_the_target(name, z, y):
    target = torch.tensor(y % len(z))
    loss = LOSSES[name](z, target)
    assert loss >= -1e-12
    wrong = MAPS[name](z).clone()
    wrong[target] -= 1
    # Ω is strongly convex on bounded p, so a residual r costs at least about r²/2 (α = 2).
    if wrong.abs().max() > 1e-3:
        assert loss > 1e-12
    if wrong.abs().max() == 0:
        assert loss == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("name", LOSSES)
@settings(max_examples=40, deadline=None)
@given(row, st.data(), st.floats(0, 1))
def test_a_loss_is_convex_along_segments(name, z, data, share):
    other = torch.tensor(data.draw(st.lists(number, min_size=len(z), max_size=len(z)))).double()
    target = torch.tensor(data.draw(st.integers(0, len(z) - 1)))
    loss = LOSSES[name]
    between = loss(share * z + (1 - share) * other, target)
    chord = share * loss(z, target) + (1 - share) * loss(other, target)
    assert between <= chord + 1e-9 * (1 + chord.abs())
