"""The share of a gradient that passes through a head: hand-made cases, autograd, and the facts."""

from __future__ import annotations

import numpy as np
import pytest

from uncork import Head, UncorkError
from uncork.theory import gradient as measuring
from uncork.theory.gradient import (
    Output,
    Passage,
    best_share,
    expected_share,
    leverages,
    measure_gradient,
    measure_mixture,
    mixture_rank,
    share_on_support,
    through,
)

OUTPUTS = [
    Output(), Output("sparsemax"), Output("entmax", 1.5), Output("entmax", 1.3),
    Output("entmax", 2.5), Output("alpha-relu", 1.5, 0.2), Output("alpha-relu", 2.0, -0.1),
]  # fmt: skip


def tokens(n: int = 12, classes: int = 40, features: int = 6, seed: int = 0):
    rng = np.random.default_rng(seed)
    head = Head(rng.normal(size=(classes, features)), rng.normal(size=classes))
    return head, rng.normal(size=(n, features)), rng.integers(0, classes, n)


def projected(weight: np.ndarray, g: np.ndarray) -> np.ndarray:
    """The obvious way: least squares."""
    return weight @ np.linalg.lstsq(weight, g.T, rcond=None)[0]


def test_one_feature_by_hand() -> None:
    """W = (1, 1, 0)ᵀ, h = 0: p = ⅓ each, target 0, g = (−⅔, ⅓, ⅓). Along W/√2 lies −⅓/√2, and
    ‖g‖² = 6/9, so the share is (1/√18)/√(2/3) = 1/√12."""
    found = measure_gradient(Head([[1.0], [1.0], [0.0]]), np.zeros((1, 1)), np.array([0]))
    assert found.norm[0] == pytest.approx(np.sqrt(2 / 3))
    assert found.share[0] == pytest.approx(1 / np.sqrt(12))
    # W Wᵀ(−g) = (⅓, ⅓, 0): with −g it has the cosine (⅑)/(√(2/9) √(2/3)) = 1/√12 as well.
    assert found.step[0] == pytest.approx(1 / np.sqrt(12))
    # The target's logit rises by (⅓)/√(2/9) of the step's length; freely by (⅔)/√(2/3).
    assert found.target[0] == pytest.approx((1 / np.sqrt(2)) / np.sqrt(2 / 3))


def test_the_heads_own_step_loses_nothing() -> None:
    """Autograd's gradients of h and W, and a small step of each: where the logits go."""
    torch = pytest.importorskip("torch")
    head, hidden, targets = tokens()
    found = measure_gradient(head, hidden, targets, device="cpu")
    for i in range(len(targets)):
        h = torch.tensor(hidden[i], requires_grad=True)
        w = torch.tensor(head.weight, dtype=torch.float64, requires_grad=True)
        z = w @ h + torch.tensor(head.bias, dtype=torch.float64)
        g = torch.autograd.grad(
            torch.nn.functional.cross_entropy(z, torch.tensor(targets[i])), z, retain_graph=True
        )[0]
        torch.nn.functional.cross_entropy(z, torch.tensor(targets[i])).backward()
        assert h.grad is not None
        assert w.grad is not None
        at, rows = h.detach(), w.detach()
        of_rows = -w.grad @ at  # W's step alone moves the logits along −g
        torch.testing.assert_close(of_rows, -(at @ at) * g)
        move = of_rows - rows @ h.grad
        cosine = float((move @ -g) / move.norm() / g.norm())
        assert found.both[i] == pytest.approx(cosine, rel=1e-9)
    assert (found.both > found.step).all()


def test_a_square_head_passes_everything() -> None:
    head, hidden, targets = tokens(classes=5, features=5)
    assert measure_gradient(head, hidden, targets).share == pytest.approx(1.0)


@pytest.mark.parametrize("output", OUTPUTS, ids=str)
def test_the_measure_is_that_of_autograd(output: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    functional = pytest.importorskip("uncork.nn.functional")
    monkeypatch.setattr(measuring, "_BYTES", 8 * 40 * 5)  # five tokens at a time
    head, hidden, targets = tokens()
    z = torch.tensor(hidden @ head.weight.T + head.bias, dtype=torch.float64, requires_grad=True)
    y = torch.tensor(targets)
    losses = {
        "softmax": lambda: torch.nn.functional.cross_entropy(z, y, reduction="sum"),
        "sparsemax": lambda: functional.sparsemax_loss(z, y, reduction="sum"),
        "entmax": lambda: functional.entmax_loss(z, y, alpha=output.alpha, reduction="sum"),
        "alpha-relu": lambda: functional.alpha_relu_loss(
            z, y, alpha=output.alpha, tau=output.tau, reduction="sum"
        ),
    }
    losses[output.name]().backward()
    g = z.grad.numpy()
    found = measure_gradient(head, hidden, targets, output=output, device="cpu")
    np.testing.assert_allclose(found.norm, np.linalg.norm(g, axis=1), rtol=1e-9)
    g, targets = g[found.norm > 0], targets[found.norm > 0]
    found = measure_gradient(head, hidden[found.norm > 0], targets, output=output, device="cpu")
    through_w = np.linalg.norm(projected(head.weight, g), axis=0)
    np.testing.assert_allclose(found.share, through_w / found.norm, rtol=1e-8)
    moved = -g @ head.weight @ head.weight.T
    cosine = (moved * -g).sum(1) / np.linalg.norm(moved, axis=1) / found.norm
    np.testing.assert_allclose(found.step, cosine, rtol=1e-8)
    rows = np.arange(len(g))
    free = -g[rows, targets] / found.norm
    own = moved[rows, targets] / np.linalg.norm(moved, axis=1)
    np.testing.assert_allclose(found.target, own / free, rtol=1e-8)
    np.testing.assert_array_equal(found.support, (np.abs(g) > 1e-12).sum(1))
    assert found.best == pytest.approx(best_share(g, 6), rel=1e-8)


def test_torch_measures_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    from uncork.auditing.backend import TorchBackend

    head, hidden, targets = tokens()
    for output in OUTPUTS:
        plain = measure_gradient(head, hidden, targets, output=output, device="cpu")
        with monkeypatch.context() as patched:
            patched.setattr(measuring, "choose_backend", lambda device: TorchBackend("cpu"))
            found = measure_gradient(head, hidden, targets, output=output)
        np.testing.assert_allclose(found.share, plain.share, rtol=1e-9)
        np.testing.assert_allclose(found.support_share, plain.support_share, rtol=1e-9)


def test_rows_that_are_not_held_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    head, hidden, targets = tokens()
    plain = measure_gradient(head, hidden, targets)
    monkeypatch.setattr(measuring, "_HELD", 0)
    np.testing.assert_array_equal(measure_gradient(head, hidden, targets).share, plain.share)


def test_dependent_and_zero_columns_count_once() -> None:
    head, hidden, targets = tokens(features=3)
    wide = Head(np.concatenate([head.weight, head.weight[:, :1], np.zeros((40, 1))], 1), head.bias)
    assert Passage.of(wide).rank == 3
    more = np.concatenate([hidden, np.zeros((12, 2))], axis=1)
    np.testing.assert_allclose(
        measure_gradient(wide, more, targets).share, measure_gradient(head, hidden, targets).share
    )


def test_a_token_without_a_gradient_has_lost_nothing() -> None:
    head = Head([[9.0], [0.0], [-9.0]])
    found = measure_gradient(head, np.ones((1, 1)), np.array([0]), output=Output("sparsemax"))
    assert (found.norm[0], found.share[0], found.step[0], found.both[0], found.target[0]) == (
        0,
        1,
        1,
        1,
        1,
    )
    assert found.support[0] == 0


@pytest.mark.parametrize(
    ("repeats", "bands"),
    [([1] * 20, [(1, 1, 20)]), ([1] * 6 + [6] + [18], [(1, 1, 6), (6, 6, 6), (18, 18, 18)])],
)
def test_equally_frequent_targets_share_a_band(
    repeats: list[int], bands: list[tuple[int, int, int]]
) -> None:
    targets = np.repeat(np.arange(len(repeats)), repeats)
    head, _, _ = tokens()
    hidden = np.random.default_rng(1).normal(size=(len(targets), head.features))
    found = measure_gradient(head, hidden, targets, device="cpu").by_frequency()
    assert [(one["from"], one["to"], one["tokens"]) for one in found] == bands


def test_ignored_tokens_are_left_out() -> None:
    head, hidden, targets = tokens()
    some = targets.copy()
    some[::2] = -100
    np.testing.assert_array_equal(
        measure_gradient(head, hidden, some).share,
        measure_gradient(head, hidden[1::2], targets[1::2]).share,
    )


# Facts


@pytest.mark.parametrize(("classes", "rank"), [(10, 1), (50, 5), (7, 6)])
def test_a_random_gradient_passes_as_expected(classes: int, rank: int) -> None:
    rng = np.random.default_rng(classes)
    g = rng.normal(size=(20_000, classes))
    shares = np.linalg.norm(g[:, :rank], axis=1) / np.linalg.norm(g, axis=1)
    error = 4 * shares.std() / np.sqrt(len(shares))
    assert expected_share(classes, rank) == pytest.approx(shares.mean(), abs=error)
    assert (shares**2).mean() == pytest.approx(rank / classes, rel=0.05)
    assert expected_share(classes, classes) == 1
    assert expected_share(classes, 0) == 0


def test_no_head_of_the_same_rank_passes_more_than_the_best() -> None:
    rng = np.random.default_rng(0)
    g = rng.normal(size=(30, 12)) * np.linspace(3, 0.1, 12)
    best = best_share(g, 4)
    for _ in range(50):
        w = rng.normal(size=(12, 4))
        assert np.linalg.norm(projected(w, g)) / np.linalg.norm(g) <= best + 1e-12
    first = np.linalg.svd(g)[2][:4].T
    assert np.linalg.norm(projected(first, g)) / np.linalg.norm(g) == pytest.approx(best)


def test_leverages_sum_to_the_rank_and_are_the_shares_of_single_classes() -> None:
    head, _, _ = tokens()
    found = leverages(head)
    assert found.sum() == pytest.approx(6)
    each = np.linalg.norm(projected(head.weight, np.eye(40)), axis=0) ** 2
    np.testing.assert_allclose(found, each)


def test_a_bias_changes_the_gradient_and_not_what_passes() -> None:
    head, hidden, targets = tokens()
    assert Passage.of(head).root.tolist() == Passage.of(head.replace(bias=None)).root.tolist()
    with_it = measure_gradient(head, hidden, targets).share
    assert (with_it != measure_gradient(head.replace(bias=None), hidden, targets).share).all()


def test_a_linear_layer_before_the_head_never_lets_more_through() -> None:
    wide, _, targets = tokens(features=9)
    before = np.random.default_rng(1).normal(size=(9, 4))
    states = np.random.default_rng(2).normal(size=(12, 4))
    narrow = measure_gradient(through(wide, before), states, targets)
    assert narrow.rank == 4
    full = measure_gradient(wide, states @ before.T, targets)
    assert (narrow.share <= full.share + 1e-12).all()


def test_independent_rows_lose_nothing_on_their_own_support() -> None:
    rng = np.random.default_rng(0)
    g = rng.normal(size=5)
    assert share_on_support(rng.normal(size=(5, 6)), g) == pytest.approx(1)
    assert share_on_support(rng.normal(size=(5, 2)), g) < 1
    twice = np.array([[1.0, 0.0], [1.0, 0.0]])
    assert share_on_support(twice, np.array([1.0, -1.0])) == pytest.approx(0, abs=1e-12)
    head, hidden, targets = tokens(classes=300, features=30)
    sparse = measure_gradient(head, 2 * hidden, targets, output=Output("sparsemax"))
    assert sparse.support.max() <= 30
    assert sparse.support_share == pytest.approx(1)
    assert (sparse.share < 0.9).any()


def test_a_mixture_moves_in_more_directions_and_never_fewer() -> None:
    rng = np.random.default_rng(0)
    head, _, targets = tokens(classes=30, features=3)
    hidden = rng.normal(size=(12, 1, 3))
    one = measure_mixture(head, hidden, np.ones((12, 1)), targets)
    centred = head.weight - head.weight.mean(axis=0)
    plain = measure_gradient(head, hidden[:, 0], targets)
    np.testing.assert_allclose(one.stacked, plain.share, rtol=1e-9)
    z = hidden[:, 0] @ head.weight.T + head.bias
    p = np.exp(z - z.max(1, keepdims=True))
    g = p / p.sum(1, keepdims=True) - np.eye(30)[targets]
    share = np.linalg.norm(projected(centred, g), axis=0) / np.linalg.norm(g, axis=1)
    np.testing.assert_allclose(one.tangent, share, rtol=1e-8)
    three = measure_mixture(head, rng.normal(size=(12, 3, 3)), np.full((12, 3), 1 / 3), targets)
    assert three.tangent.mean() > one.tangent.mean()
    assert mixture_rank(3, 1) == 3
    assert mixture_rank(3, 3) == 11


@pytest.mark.parametrize(
    ("hidden", "targets", "message"),
    [
        (np.zeros((2, 5)), np.zeros(2, int), "expected \\(tokens, 6\\)"),
        (np.zeros((2, 6)), np.zeros(3, int), "one class id"),
        (np.zeros((2, 6)), np.array([0, 40]), "target 40"),
        (np.zeros((2, 6)), np.array([-100, -100]), "no token"),
        (np.full((2, 6), np.nan), np.zeros(2, int), "not finite"),
    ],
)
def test_wrong_tokens_are_refused(hidden: np.ndarray, targets: np.ndarray, message: str) -> None:
    with pytest.raises(UncorkError, match=message):
        measure_gradient(tokens()[0], hidden, targets)


@pytest.mark.parametrize("wrong", [("relu", 1.5), ("entmax", 1.0), ("entmax", float("nan"))])
def test_wrong_outputs_are_refused(wrong: tuple[str, float]) -> None:
    with pytest.raises(UncorkError, match="expected"):
        Output(*wrong)
