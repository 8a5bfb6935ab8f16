"""The transforms give the right values and derivatives: those of the slow twin and of the peer."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import uncork.nn as unn  # noqa: E402
import uncork.nn.functional as F  # noqa: E402
from uncork.nn import reference  # noqa: E402

ALPHAS = [1.0, 1.001, 1.1, 1.25, 1.5, 1.75, 2.0, 2.5, 4.0]
SHAPES = [(1,), (7,), (3, 5), (2, 3, 4), (4, 700)]


def logits(*shape, std=1.5, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=dtype) * std


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("shape", SHAPES)
def test_entmax_equals_the_slow_twin(alpha, shape):
    z = logits(*shape)
    for dim in range(len(shape)):
        expected = reference.entmax(z.numpy(), alpha, axis=dim)
        tolerance = 1e-12 if alpha <= 2 else 1e-9  # vertical tangents above 2
        np.testing.assert_allclose(F.entmax(z, alpha, dim).numpy(), expected, atol=tolerance)


@pytest.mark.parametrize("std", [0.03, 1.0, 2.0, 10.0])
@pytest.mark.parametrize("alpha", [1.05, 1.25, 1.5, 2.0, 3.0])
@pytest.mark.parametrize("classes", [512, 1000, 4096])
def test_wide_rows_equal_the_slow_twin(alpha, std, classes):
    z = logits(3, classes, std=std)
    tolerance = 1e-13 if alpha <= 2 else 1e-8
    np.testing.assert_allclose(
        F.entmax(z, alpha).numpy(), reference.entmax(z.numpy(), alpha), atol=tolerance
    )


def test_a_batch_of_flat_and_peaked_rows_equals_each_row_alone():
    z = logits(40, 3000) * torch.logspace(-3, 2, 40, dtype=torch.float64)[:, None]
    grad = logits(40, 3000, seed=1)
    for alpha in (1.3, 1.5, 2.0, torch.linspace(1, 3, 40, dtype=torch.float64)[:, None]):
        whole = z.clone().requires_grad_()
        p = F.entmax(whole, alpha)
        p.backward(grad)
        for row in (0, 13, 20, 39):
            single = z[row].clone().requires_grad_()
            one = alpha[row] if isinstance(alpha, torch.Tensor) else alpha
            q = F.entmax(single, one)
            q.backward(grad[row])
            torch.testing.assert_close(p[row], q, atol=1e-10, rtol=1e-8)
            torch.testing.assert_close(whole.grad[row], single.grad, atol=1e-8, rtol=1e-6)


@pytest.mark.parametrize("alpha", [1.1, 1.5, 2.0, 3.0])
def test_alpha_relu_equals_the_slow_twin(alpha):
    z = logits(6, 50)
    for tau in (-0.5, 0.0, 0.3):
        np.testing.assert_allclose(
            F.alpha_relu(z, alpha, tau).numpy(), reference.alpha_relu(z.numpy(), alpha, tau)
        )


@pytest.mark.parametrize("alpha", [1.2, 1.5, 2.0, 5.0, 100.0])
def test_normmax_equals_the_slow_twin(alpha):
    for shape in SHAPES:
        z = logits(*shape)
        for dim in range(len(shape)):
            np.testing.assert_allclose(
                F.normmax(z, alpha, dim).numpy(),
                reference.normmax(z.numpy(), alpha, axis=dim),
                atol=1e-9,
            )


@pytest.mark.parametrize("k", [0.0, 0.5, 1.0, 2.0, 3.7, 6.0, 20.0])
def test_budget_equals_the_slow_twin(k):
    for shape in SHAPES:
        z = logits(*shape)
        for dim in range(len(shape)):
            np.testing.assert_allclose(
                F.budget(z, k, dim).numpy(), reference.budget(z.numpy(), k, axis=dim), atol=1e-9
            )


@pytest.mark.parametrize("k", [1.5, 3.0, 3.5, 6.0])
def test_budget_of_rows_with_classes_ruled_out(k):
    z = logits(6, 5).masked_fill(torch.eye(6, 5, dtype=torch.bool), -torch.inf)
    expected = reference.budget(z.numpy(), k)
    np.testing.assert_allclose(F.budget(z, k).numpy(), expected, atol=1e-9)
    each = F.budget(z, torch.full((6, 1), k, dtype=z.dtype))
    np.testing.assert_allclose(each.numpy(), expected, atol=1e-9)
    z[2, 1] = torch.nan
    assert F.budget(z, k)[2].isnan().all()


def test_the_slow_twin_itself_where_edges_are_steep():
    """Against p that was there first: logits follow from it. And near an edge, to four digits."""
    p = np.array([0.5, 0.3, 0.2])
    np.testing.assert_allclose(reference.entmax(p**9 / 9, 10.0), p, rtol=1e-6)
    found = reference.entmax(np.array([0.0873, -0.1374, -0.0165]), 10.0)
    np.testing.assert_allclose(found, [0.9925, 0, 0.0075], atol=5e-5)
    z = logits(30, 6)
    for alpha in (10.0, 50.0):
        expected = F.entmax(z, alpha).numpy()
        np.testing.assert_allclose(reference.entmax(z.numpy(), alpha), expected, atol=1e-6)


def test_log_entmax_of_a_row_ruled_out_at_alpha_one():
    z = logits(3, 4)
    z[1] = -torch.inf
    z.requires_grad_()
    found = F.log_entmax(z, 1.0)
    assert (found[1] == -torch.inf).all()
    torch.testing.assert_close(found[[0, 2]], z[[0, 2]].log_softmax(-1))
    (gradient,) = torch.autograd.grad(found[[0, 2], 0].sum(), z)
    assert (gradient[1] == 0).all()


@pytest.mark.parametrize(
    ("z", "alpha"), [([300.0, 290.0], 1.01), ([1e-4, 0.9e-4], 1.1), ([3.0, 1.0, -2.0], 1.5)]
)
def test_log_scores_stay_within_the_range_of_their_type(z, alpha):
    exact = torch.tensor(z, dtype=torch.float64)
    base = ((alpha - 1) * exact).relu().log() / (alpha - 1)
    got = F.alpha_relu_log_scores(exact.float(), alpha)
    torch.testing.assert_close(got.double(), base.log_softmax(-1), rtol=1e-4, atol=1e-4)


def test_budget_of_one_is_sparsemax():
    z = logits(5, 30)
    torch.testing.assert_close(F.budget(z, 1.0), F.sparsemax(z))


def test_alpha_one_is_softmax_and_two_is_sparsemax():
    z = logits(5, 30)
    torch.testing.assert_close(F.entmax(z, 1.0), torch.softmax(z, -1))
    torch.testing.assert_close(F.entmax(z, 2.0), F.sparsemax(z))
    ones = torch.ones(5, 1, dtype=torch.float64)
    torch.testing.assert_close(F.entmax(z, ones), torch.softmax(z, -1))


def test_alpha_near_one_approaches_softmax_without_loss_of_precision():
    z = logits(5, 30, dtype=torch.float32)
    for alpha in (1 + 1e-6, 1.00001, 1.0001):
        assert (F.entmax(z, alpha) - torch.softmax(z, -1)).abs().max() < 20 * (alpha - 1) + 1e-6


def test_alpha_may_differ_by_row_and_by_head():
    z = logits(2, 3, 4, 5)  # batch, heads, queries, keys
    alpha = torch.tensor([1.2, 1.5, 2.0], dtype=torch.float64)[:, None, None]
    p = F.entmax(z, alpha, dim=-1)
    for head in range(3):
        torch.testing.assert_close(p[:, head], F.entmax(z[:, head], float(alpha[head])))
    alpha_first = alpha.reshape(1, 3, 1, 1)
    torch.testing.assert_close(F.entmax(z, alpha_first, dim=2).sum(2), torch.ones_like(z[:, :, 0]))


def test_support_and_threshold_are_returned():
    z = logits(4, 900).requires_grad_()
    for alpha in (1.5, 2.0, 1.3):
        p, tau, size = F.entmax(z, alpha, return_support=True)
        assert size.dtype == torch.int64
        assert tau.shape == size.shape == (4, 1)
        assert torch.equal(size, (p > 0).sum(-1, keepdim=True))
        again = ((alpha - 1) * z - tau).relu() ** (1 / (alpha - 1))
        torch.testing.assert_close(again, p, atol=1e-12, rtol=1e-9)
        np.testing.assert_allclose(
            tau.detach().numpy()[:, 0],
            reference.entmax_threshold(z.detach().numpy(), alpha),
            atol=1e-11,
        )
        tau.sum().backward()  # the threshold has a gradient too
    p, tau, size = F.alpha_relu(z, 1.5, 0.4, return_support=True)
    assert float(tau) == pytest.approx(0.4)
    assert torch.equal(size, (p > 0).sum(-1, keepdim=True))


def test_k_never_changes_the_result():
    z = logits(4, 900, std=0.1)
    for k in (1, 3, 10_000):
        assert torch.equal(F.entmax(z, 1.5, k=k), F.entmax(z, 1.5))
        assert torch.equal(F.sparsemax(z, k=k), F.sparsemax(z))


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize(("shape", "dim"), [((5,), 0), ((3, 4), 1), ((4, 3), 0), ((2, 4, 3), 1)])
def test_entmax_is_differentiable_twice(alpha, shape, dim):
    z = logits(*shape).requires_grad_()
    assert torch.autograd.gradcheck(lambda z: F.entmax(z, alpha, dim), z, atol=1e-5)
    assert torch.autograd.gradgradcheck(lambda z: F.entmax(z, alpha, dim), z, atol=1e-5)


@pytest.mark.parametrize("alpha", [1.0, 1.0001, 1.2, 1.5, 2.0, 2.5])
def test_alpha_receives_a_gradient_and_a_second_one(alpha):
    z = logits(3, 5).requires_grad_()
    rows = torch.full((3, 1), alpha, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda z, a: F.entmax(z, a), (z, rows), atol=1e-5)
    assert torch.autograd.gradgradcheck(lambda z, a: F.entmax(z, a), (z, rows), atol=1e-5)


@pytest.mark.parametrize("alpha", [1.2, 1.5, 2.0, 3.0])
def test_alpha_relu_normmax_and_budget_are_differentiable_twice(alpha):
    z = logits(3, 5).requires_grad_()
    number = torch.tensor(alpha, dtype=torch.float64, requires_grad=True)
    tau = torch.tensor(0.137, dtype=torch.float64, requires_grad=True)
    cases = [
        (lambda z, a, t: F.alpha_relu(z, a, t), (z, number, tau)),
        (lambda z: F.alpha_relu(z, alpha, 0.137), (z,)),
        (lambda z, a: F.normmax(z, a), (z, number)),
        (lambda z, k: F.budget(z, k + 0.13), (z, number)),  # a whole k can be a kink
    ]
    for function, arguments in cases:
        assert torch.autograd.gradcheck(function, arguments, atol=1e-5)
        assert torch.autograd.gradgradcheck(function, arguments, atol=1e-5)


def test_gradients_of_wide_rows_equal_the_differentiable_formula():
    for alpha in (1.3, 1.5, 2.0, 2.5):
        for std in (0.03, 2.0):
            z = logits(4, 2000, std=std).requires_grad_()
            grad = logits(4, 2000, seed=1)
            (fast,) = torch.autograd.grad(F.entmax(z, alpha), z, grad)
            (formula,) = torch.autograd.grad(F.entmax(z, alpha), z, grad, create_graph=True)
            torch.testing.assert_close(fast, formula, atol=1e-12, rtol=1e-9)


def test_the_iteration_stops_by_its_error_and_few_steps_suffice(monkeypatch):
    from uncork.nn.transforms import threshold

    steps = 0
    sums = threshold._sums

    def counting(*arguments):
        nonlocal steps
        steps += 1
        return sums(*arguments)

    monkeypatch.setattr(threshold, "_sums", counting)
    rows = {
        "flat": logits(2, 400, std=1e-3),
        "normal": logits(2, 400),
        "geometric": -(2.0 ** -torch.arange(400, dtype=torch.float64)).flip(0).repeat(2, 1),
        "linear": -torch.linspace(0, 1, 400, dtype=torch.float64).repeat(2, 1),
        "one against many": torch.cat([torch.zeros(2, 1), torch.full((2, 399), -0.5)], 1).double(),
    }
    for name, z in rows.items():
        for alpha in (1.01, 1.1, 1.5, 1.9, 2.0, 3.0, 6.0):
            steps = 0
            p = F.entmax(z, alpha)
            most = 14 if alpha <= 2 else 60
            assert steps <= most, (name, alpha, steps)
            torch.testing.assert_close(p.sum(-1), torch.ones(2).double(), atol=1e-13, rtol=0)


def test_log_probabilities_are_the_logarithm_where_it_exists():
    z = logits(4, 30).requires_grad_()
    for log, p in ((F.log_entmax(z), F.entmax(z)), (F.log_sparsemax(z), F.sparsemax(z))):
        torch.testing.assert_close(log.exp(), p)
        assert torch.equal(log == -torch.inf, p == 0)
        (gradient,) = torch.autograd.grad(log.max(-1).values.sum(), z)
        assert gradient.isfinite().all()
    torch.testing.assert_close(F.log_entmax(z, 1.0), torch.log_softmax(z, -1))


def test_alpha_relu_scores_are_normalised_and_always_name_a_class():
    z = logits(4, 30)
    z[2] = -5.0 + 0.01 * logits(30)  # nothing above the threshold
    z[3, :29] = -torch.inf
    z[3, 29] = -9.0
    scores = F.alpha_relu_log_scores(z, 1.5, 0.2)
    torch.testing.assert_close(scores.exp().sum(-1), torch.ones(4).double())
    assert torch.equal(scores.argmax(-1), z.argmax(-1))
    p = F.alpha_relu(z[:2], 1.5, 0.2)
    torch.testing.assert_close(scores[:2].exp(), p / p.sum(-1, keepdim=True))


def test_modules_are_the_functions():
    z = logits(4, 9)
    pairs = [
        (unn.Sparsemax(), F.sparsemax(z)),
        (unn.Entmax(1.3, dim=0), F.entmax(z, 1.3, 0)),
        (unn.LogEntmax(1.3), F.log_entmax(z, 1.3)),
        (unn.AlphaReLU(1.5, 0.2), F.alpha_relu(z, 1.5, float(torch.tensor(0.2)))),
        (unn.Normmax(3.0), F.normmax(z, 3.0)),
        (unn.Budget(3.0), F.budget(z, 3.0)),
    ]
    for module, expected in pairs:
        torch.testing.assert_close(module(z), expected)
        assert type(module).__name__ in repr(module)
    learned = unn.Entmax(torch.nn.Parameter(torch.tensor(1.4)))
    learned(z).square().sum().backward()
    assert learned.alpha.grad is not None
    assert "tau" in unn.AlphaReLU(tau=0.3).state_dict()


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda z: F.entmax(z, 0.0), "alpha must be finite and > 0"),
        (lambda z: F.entmax(z, float("nan")), "alpha must be finite"),
        (lambda z: F.alpha_relu(z, 1.0), "alpha must be finite and > 1"),
        (lambda z: F.normmax(z, 1.0), "alpha must be finite and > 1"),
        (lambda z: F.budget(z, -1.0), "budget must be finite and >= 0"),
        (lambda z: F.entmax(z, k=0), "k must be a positive integer"),
        (lambda z: F.entmax(z.long()), "input must be a floating-point tensor"),
        (lambda z: F.entmax(z, torch.tensor([1, 2])), "alpha must be a floating-point tensor"),
        (lambda z: F.entmax(z, torch.ones(4) + 0.5), "alpha of shape"),
    ],
)
def test_a_bad_argument_is_named(call, says):
    with pytest.raises(ValueError, match=says):
        call(torch.zeros(3, 4))


class TestAgainstTheEntmaxPackage:
    """Where the peer is right, the results are the peer's to float64 precision."""

    @pytest.fixture
    def peer(self):
        return pytest.importorskip("entmax")

    @pytest.mark.parametrize("std", [0.03, 1.0, 10.0])
    @pytest.mark.parametrize("classes", [1, 6, 1000])
    def test_values_and_gradients_agree(self, peer, std, classes):
        grad = logits(8, classes, seed=2)
        pairs = [
            (F.sparsemax, peer.sparsemax),
            (F.entmax, peer.entmax15),
            (lambda z: F.entmax(z, 1.25), lambda z: peer.entmax_bisect(z, 1.25)),
            (lambda z: F.entmax(z, 1.75), lambda z: peer.entmax_bisect(z, 1.75)),
            (lambda z: F.normmax(z, 2.0), lambda z: peer.normmax_bisect(z, 2.0)),
        ]
        for ours, theirs in pairs:
            z = logits(8, classes, std=std).requires_grad_()
            p, q = ours(z), theirs(z)
            torch.testing.assert_close(p, q, atol=5e-13, rtol=1e-9)
            (dp,) = torch.autograd.grad(p, z, grad)
            (dq,) = torch.autograd.grad(q, z, grad)
            torch.testing.assert_close(dp, dq, atol=1e-10, rtol=1e-8)

    def test_gradient_of_alpha_agrees(self, peer):
        z = logits(8, 12)
        grad = logits(8, 12, seed=3)
        alpha = torch.linspace(1.1, 2.2, 8, dtype=torch.float64)[:, None].requires_grad_()
        (ours,) = torch.autograd.grad(F.entmax(z, alpha), alpha, grad)
        (theirs,) = torch.autograd.grad(peer.entmax_bisect(z, alpha), alpha, grad)
        torch.testing.assert_close(ours, theirs, atol=1e-9, rtol=1e-7)

    def test_budget_agrees(self, peer):
        z = logits(8, 12)
        for k in (0.5, 2.0, 5.0):
            torch.testing.assert_close(F.budget(z, k), peer.budget_bisect(z, k), atol=1e-9, rtol=0)


@pytest.mark.parametrize("alpha", [1.3, 2.0, 4.0])
def test_normmax_in_blocks_has_the_gradient_of_its_parts(alpha):
    from uncork.nn.transforms import normmax

    z = torch.randn(40, 1000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    z[3] = -torch.inf
    z.requires_grad_()
    upstream = torch.arange(40_000.0, dtype=z.dtype).reshape(40, 1000).cos()
    found, expected = normmax.normmax_rows(z, alpha), normmax._differentiated(z, alpha)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(
        torch.autograd.grad(found, z, upstream), torch.autograd.grad(expected, z, upstream)
    )
