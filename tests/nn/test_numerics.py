"""Inputs that break other implementations: each promise beside the peer's failure to keep it."""

import pytest

torch = pytest.importorskip("torch")

import uncork.nn.functional as F  # noqa: E402
from uncork.nn import reference  # noqa: E402

INF = torch.inf
TRANSFORMS = {
    "softmax": lambda z, dim=-1: F.entmax(z, 1.0, dim),
    "sparsemax": F.sparsemax,
    "entmax 1.3": lambda z, dim=-1: F.entmax(z, 1.3, dim),
    "entmax 1.5": lambda z, dim=-1: F.entmax(z, 1.5, dim),
    "entmax tensor": lambda z, dim=-1: F.entmax(z, torch.tensor(1.4, dtype=torch.float64), dim),
    "entmax 3": lambda z, dim=-1: F.entmax(z, 3.0, dim),
    "normmax": lambda z, dim=-1: F.normmax(z, 2.0, dim),
    "budget": lambda z, dim=-1: F.budget(z, 1.0, dim),
}
LOSSES = {
    "softmax": F.softmax_loss,
    "sparsemax": F.sparsemax_loss,
    "entmax 1.3": lambda z, y, **o: F.entmax_loss(z, y, alpha=1.3, **o),
    "entmax 1.5": F.entmax_loss,
    "entmax tensor": lambda z, y, **o: F.entmax_loss(z, y, alpha=torch.tensor(1.4), **o),
    "alpha_relu": lambda z, y, **o: F.alpha_relu_loss(z, y, tau=0.1, **o),
    "normmax": F.normmax_loss,
}
every_transform = pytest.mark.parametrize("name", TRANSFORMS)
every_loss = pytest.mark.parametrize("name", LOSSES)


@pytest.fixture
def peer():
    return pytest.importorskip("entmax")


def logits(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def masked_logits():
    z = logits(4, 10)
    z[:, 7:] = -INF
    return z


@every_transform
@pytest.mark.parametrize("classes", [10, 1000])
def test_masked_logits_get_nothing_and_change_nothing(name, classes):
    z = logits(4, classes)
    keep = torch.arange(classes) % 3 != 0
    masked = torch.where(keep, z, -INF).requires_grad_()
    p = TRANSFORMS[name](masked)
    torch.testing.assert_close(p[:, keep], TRANSFORMS[name](z[:, keep]), atol=1e-6, rtol=1e-5)
    assert (p[:, ~keep] == 0).all()
    (gradient,) = torch.autograd.grad(p, masked, logits(4, classes, seed=1))
    assert gradient.isfinite().all()
    assert (gradient[:, ~keep] == 0).all()


@every_loss
def test_a_loss_over_masked_logits_is_finite(name):
    z = masked_logits().requires_grad_()
    y = torch.tensor([0, 6, 3, 2])
    loss = LOSSES[name](z, y)
    torch.testing.assert_close(loss, LOSSES[name](z[:, :7], y))
    loss.backward()
    assert z.grad.isfinite().all()
    soft = torch.zeros(4, 10).scatter(1, y[:, None], 1.0)
    torch.testing.assert_close(LOSSES[name](z, soft), loss)


@every_loss
def test_a_masked_target_costs_infinity_as_in_cross_entropy(name):
    y = torch.tensor([0, 9, 3, 2])
    losses = LOSSES[name](masked_logits(), y, reduction="none")
    assert losses[1] == INF
    assert losses[[0, 2, 3]].isfinite().all()


def test_peer_losses_are_nan_with_masked_logits(peer):
    y = torch.tensor([0, 6, 3, 2])
    for loss in (peer.SparsemaxLoss, peer.Entmax15Loss, peer.EntmaxBisectLoss):
        assert loss()(masked_logits(), y).isnan()
    assert peer.budget_bisect(masked_logits(), 2.0).isnan().any()


@every_transform
def test_a_row_masked_entirely_is_all_zero_with_zero_gradient(name):
    z = logits(3, 6)
    z[1] = -INF
    z.requires_grad_()
    p = TRANSFORMS[name](z)
    assert (p[1] == 0).all()
    torch.testing.assert_close(p[[0, 2]], TRANSFORMS[name](z[[0, 2]]))
    (gradient,) = torch.autograd.grad(p, z, logits(3, 6, seed=1))
    assert (gradient[1] == 0).all()
    assert gradient.isfinite().all()
    wide = torch.full((2, 900), -INF)
    assert (TRANSFORMS[name](wide) == 0).all()


def test_peer_fails_on_a_row_masked_entirely(peer):
    row = torch.full((2, 6), -INF)
    for transform in (peer.sparsemax, peer.entmax15):
        with pytest.raises(RuntimeError, match="out of bounds"):
            transform(row)
    assert peer.entmax_bisect(row).isnan().all()


@every_transform
def test_one_class_takes_everything(name):
    z = logits(5, 1).requires_grad_()
    p = TRANSFORMS[name](z)
    torch.testing.assert_close(p, torch.ones(5, 1))
    (gradient,) = torch.autograd.grad(p.sum(), z)
    assert (gradient == 0).all()
    assert TRANSFORMS[name](torch.tensor(3.0), 0).shape == ()  # as torch.softmax: a scalar is one


def test_peer_refuses_a_scalar(peer):
    for transform in (peer.sparsemax, peer.entmax15, peer.entmax_bisect):
        with pytest.raises(IndexError):
            transform(torch.tensor(3.0))


@every_transform
def test_ties_share_equally(name):
    z = torch.tensor([[1.0, 3.0, 3.0, -2.0, 3.0]])
    p = TRANSFORMS[name](z)
    assert p[0, 1] == p[0, 2] == p[0, 4]
    flat = TRANSFORMS[name](torch.zeros(2, 1000))
    torch.testing.assert_close(flat, torch.full((2, 1000), 1e-3))


@every_transform
def test_logits_of_ten_thousand_and_a_spread_of_1e8_are_exact(name):
    z = torch.tensor([[9999.5, 10000.0, 9998.0], [0.0, 1e8, -1e8], [-1e8, 0.5, 0.0]])
    p = TRANSFORMS[name](z)
    expected = TRANSFORMS[name](z.double()).float()
    torch.testing.assert_close(p, expected, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(p.sum(-1), torch.ones(3))
    wide = logits(3, 2000) * 1e8
    torch.testing.assert_close(TRANSFORMS[name](wide).sum(-1), torch.ones(3))


@every_loss
def test_a_loss_at_logits_of_ten_thousand_keeps_its_digits(name):
    if name == "alpha_relu":
        pytest.skip("not shift invariant: its loss at 10,000 is itself large")
    z = (logits(4, 30) * 64).round() / 64  # exact after the shift
    y = torch.tensor([1, 2, 3, 4])
    shifted = LOSSES[name](z + 8192, y, reduction="none")
    torch.testing.assert_close(shifted, LOSSES[name](z, y, reduction="none"), atol=2e-6, rtol=1e-6)


def test_peer_is_nan_at_a_spread_of_1e8_and_loses_digits_at_ten_thousand(peer):
    wide = logits(4, 50) * 1e8
    assert peer.entmax_bisect(wide).isnan().any()
    assert peer.normmax_bisect(wide).isnan().any()
    z = (logits(4, 30) * 64).round() / 64
    y = torch.tensor([1, 2, 3, 4])
    loss = peer.Entmax15Loss(reduction="none")
    assert (loss(z + 8192, y) - loss(z, y)).abs().max() > 5e-5


@every_transform
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("std", [0.05, 3.0])
def test_16_bit_logits_are_computed_in_float32(name, dtype, std):
    z = (logits(4, 3000) * std).to(dtype)
    p = TRANSFORMS[name](z)
    assert p.dtype == dtype
    exact = TRANSFORMS[name](z.double())
    # The only error is the rounding of the result (and float32's own noise above α = 2).
    allowed = torch.finfo(dtype).eps * exact + 1e-4 * torch.finfo(dtype).eps + 2e-6
    if name == "entmax 3":
        allowed = allowed + 1e-3
    assert ((p.double() - exact).abs() <= allowed).all()
    again = z.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(TRANSFORMS[name](again).square().sum(), again)
    assert gradient.dtype == dtype
    assert gradient.isfinite().all()


@every_loss
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bit_losses_are_computed_in_float32(name, dtype):
    z = logits(8, 3000).to(dtype).requires_grad_()
    y = torch.arange(8)
    loss = LOSSES[name](z, y)
    assert loss.dtype == dtype
    exact = LOSSES[name](z.detach().double(), y)
    assert abs(loss.item() - float(exact)) <= torch.finfo(dtype).eps * float(exact)
    loss.backward()
    assert z.grad.isfinite().all()


def test_peer_is_wrong_or_nan_in_16_bit(peer):
    z = (logits(4, 5000) * 0.1).bfloat16()
    sums = peer.entmax15(z).float().sum(-1)
    assert (sums - 1).abs().max() > 0.02
    ours = F.entmax(z, dtype=torch.float32).sum(-1)
    torch.testing.assert_close(ours, torch.ones(4), atol=1e-5, rtol=0)
    half = torch.zeros(1, 70_000, dtype=torch.float16)  # its row index overflows float16
    assert peer.entmax15(half).isnan().any() or (peer.entmax15(half).float().sum() - 1).abs() > 0.02
    assert (F.entmax(half, dtype=torch.float32).sum() - 1).abs() < 1e-4


@every_transform
def test_empty_batches_pass_through(name):
    for shape in ((0, 5), (3, 0), (0,), (2, 0, 4)):
        z = torch.zeros(shape, requires_grad=True)
        p = TRANSFORMS[name](z)
        assert p.shape == shape
        p.sum().backward()
    assert F.alpha_relu(torch.zeros(0, 5)).shape == (0, 5)
    assert F.alpha_relu_log_scores(torch.zeros(3, 0)).shape == (3, 0)


@every_loss
def test_an_empty_batch_is_nan_or_zero_as_in_cross_entropy(name):
    z, y = torch.zeros(0, 5, requires_grad=True), torch.zeros(0, dtype=torch.long)
    assert LOSSES[name](z, y).isnan()
    assert LOSSES[name](z, y, reduction="sum") == 0
    assert LOSSES[name](z, y, reduction="none").shape == (0,)


def test_peer_refuses_an_empty_row(peer):
    with pytest.raises(IndexError):
        peer.entmax15(torch.zeros(3, 0))


@every_transform
def test_strided_transposed_and_expanded_tensors_work(name):
    base = logits(6, 1120, dtype=torch.float64)
    for z in (
        base[:, ::2],
        base.t(),
        base.t()[3:90],
        base[:1].expand(5, 1120),
        base[:, :1].expand(6, 40),
        base.unflatten(1, (7, 160)).permute(2, 0, 1),
    ):
        for dim in range(z.dim()):
            copy = z.contiguous().requires_grad_()
            view = z.detach().requires_grad_()
            p, q = TRANSFORMS[name](view, dim), TRANSFORMS[name](copy, dim)
            torch.testing.assert_close(p, q, atol=1e-12, rtol=1e-8)
            grad = torch.ones(1, dtype=torch.float64).expand(p.shape)  # an expanded gradient too
            (dp,) = torch.autograd.grad(p.square(), view, grad)
            (dq,) = torch.autograd.grad(q.square(), copy, grad)
            torch.testing.assert_close(dp, dq, atol=1e-9, rtol=1e-6)


def test_any_subset_of_the_inputs_may_require_a_gradient():
    y = torch.tensor([1, 2, 0])
    for bits in range(1, 8):
        z = logits(3, 6, dtype=torch.float64).requires_grad_(bool(bits & 1))
        alpha = torch.tensor(1.4, dtype=torch.float64, requires_grad=bool(bits & 2))
        tau = torch.tensor(0.1, dtype=torch.float64, requires_grad=bool(bits & 4))
        for value in (
            F.entmax(z, alpha).square().sum(),
            F.alpha_relu(z, alpha, tau).square().sum(),
            F.alpha_relu_loss(z, y, alpha=alpha, tau=tau),
        ):
            wanted = [x for x in (z, alpha, tau) if x.requires_grad]
            if value.requires_grad:
                gradients = torch.autograd.grad(value, wanted, allow_unused=True)
                assert any(g is not None for g in gradients)


def test_nan_stays_nan_in_its_row_and_only_there():
    for classes in (6, 900):
        z = logits(3, classes)
        z[1, 2] = torch.nan
        for transform in (*TRANSFORMS.values(), F.log_entmax, F.alpha_relu_log_scores):
            p = transform(z)
            assert p[1].isnan().any()
            assert not p[[0, 2]].isnan().any()


@pytest.mark.parametrize("form", [float, torch.tensor])
@pytest.mark.parametrize("alpha", [3.0, 5.0, 10.0])
def test_equal_logits_share_evenly_for_large_alpha(alpha, form):
    """Where s is 1/(α−1) but for less than its rounding, so that s alone would give zeros."""
    for classes in (100, 6000):
        row = torch.zeros(1, classes)
        for z in (row, torch.cat([row, row + 3, logits(1, classes)])):
            p = F.entmax(z, form(alpha))
            torch.testing.assert_close(p[0], row[0] + 1 / classes, rtol=1e-5, atol=0)
            torch.testing.assert_close(p.sum(-1), torch.ones(len(z)))
        assert reference.entmax(row[0], alpha) == pytest.approx(1 / classes)
    through = torch.func.vmap(lambda z: F.entmax(z, form(alpha)))(row)
    torch.testing.assert_close(through[0], p[0], rtol=1e-5, atol=0)


@pytest.mark.parametrize("form", [float, torch.tensor])
@pytest.mark.parametrize(("alpha", "near"), [(3.0, -0.4999995), (4.0, -0.33332), (6.0, -0.19999)])
def test_entries_next_to_the_threshold_for_large_alpha(alpha, near, form):
    """There one bit of the threshold is a hundredth of p and more."""
    z = torch.tensor([[0.0, near], [0.0, 0.0]])
    p = F.entmax(z, form(alpha))
    torch.testing.assert_close(
        p.double(), F.entmax(z.double(), form(alpha)), rtol=0, atol=2e-5, check_dtype=False
    )


@pytest.mark.parametrize("form", [float, torch.tensor])
@pytest.mark.parametrize("alpha", [5.0, 10.0, 20.0])
def test_a_gradient_beside_a_vertical_tangent_is_that_of_its_p_for_large_alpha(alpha, form):
    """One entry's slope there is 1e15 times that of the others, or overflows."""
    z = logits(5000, 7).requires_grad_()
    upstream = logits(5000, 7, seed=1)
    p = F.entmax(z, form(alpha))
    (gradient,) = torch.autograd.grad(p, z, upstream)
    p, upstream = p.detach().double(), upstream.double()
    slope = torch.where(p > 0, p.where(p > 0, 1.0).pow(2 - alpha), 0.0)
    apart = upstream[:, :, None] - upstream[:, None, :]  # no difference of what is nearly equal
    share = slope / slope.sum(-1, keepdim=True)
    expected = (slope[:, :, None] * share[:, None, :] * apart).sum(-1)
    torch.testing.assert_close(gradient.double(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("alpha", [3.0, 6.0, 30.0])
def test_the_gradient_of_a_large_alpha_is_finite(alpha):
    z, alpha = logits(5000, 7), torch.tensor(alpha, requires_grad=True)
    p = F.entmax(z, alpha)
    (found,) = torch.autograd.grad(p, alpha, logits(5000, 7, seed=1))
    assert found.isfinite()


@pytest.mark.parametrize("alpha", [1.25, 1.5, 2.0, 3.0])
def test_a_nan_among_the_logits_is_a_nan_loss_of_alpha_relu(alpha):
    z = torch.randn(3, 5)
    z[1, 2] = torch.nan
    loss = F.alpha_relu_loss(z, torch.tensor([0, 1, 2]), alpha=alpha, reduction="none")
    assert loss.isnan().tolist() == [False, True, False]
    assert F.entmax(z, alpha, return_support=True).tau[1].isnan()


def test_rows_with_alphas_on_both_sides_of_two():
    z = logits(4, 700, dtype=torch.float64)
    alpha = torch.tensor([1.0, 2.5, 1.5, 4.0], dtype=torch.float64)
    p = F.entmax(z, alpha[:, None])
    for row, value in enumerate(alpha.tolist()):
        torch.testing.assert_close(p[row], F.entmax(z[row], value), rtol=1e-9, atol=1e-13)


def test_peer_does_not_honour_ignore_index_minus_100(peer):
    z, y = logits(4, 6), torch.tensor([1, -100, 3, 2])
    for loss in (peer.SparsemaxLoss, peer.Entmax15Loss, peer.EntmaxBisectLoss):
        with pytest.raises(RuntimeError, match="out of bounds"):
            loss()(z, y)
    torch.testing.assert_close(F.entmax_loss(z, y), F.entmax_loss(z[[0, 2, 3]], y[[0, 2, 3]]))


def test_peer_has_no_label_smoothing_weights_soft_targets_or_extra_dimensions(peer):
    z, y = logits(4, 6), torch.tensor([1, 0, 3, 2])
    for option in ({"label_smoothing": 0.1}, {"weight": torch.ones(6)}):
        with pytest.raises(TypeError):
            peer.Entmax15Loss(**option)
        assert F.entmax_loss(z, y, **option).isfinite()
    with pytest.raises(RuntimeError):
        peer.Entmax15Loss()(z, z.softmax(-1))
    with pytest.raises(RuntimeError):
        peer.Entmax15Loss()(logits(2, 6, 3), torch.zeros(2, 3, dtype=torch.long))
    with pytest.raises(IndexError):
        peer.Entmax15Loss()(logits(6), torch.tensor(2))


def test_peer_has_no_second_derivative_and_no_gradient_of_alpha_in_its_losses(peer):
    z = logits(3, 5, dtype=torch.float64).requires_grad_()
    y = torch.tensor([1, 0, 3])
    for function in (peer.entmax15, lambda z: peer.Entmax15Loss()(z, y)):
        with pytest.raises(RuntimeError, match="mismatch"):
            torch.autograd.gradgradcheck(function, z)
    alpha = torch.tensor(1.4, dtype=torch.float64, requires_grad=True)
    value = peer.EntmaxBisectLoss(alpha=alpha)(z, y)
    assert torch.autograd.grad(value, alpha, allow_unused=True)[0] is None


def test_peer_loses_the_gradient_of_alpha_near_one(peer):
    z = logits(4, 10)
    single = torch.tensor(1.0001, requires_grad=True)
    double = torch.tensor(1.0001, dtype=torch.float64, requires_grad=True)
    (exact,) = torch.autograd.grad(F.entmax(z.double(), double)[:, 0].sum(), double)
    (ours,) = torch.autograd.grad(F.entmax(z, single)[:, 0].sum(), single)
    (theirs,) = torch.autograd.grad(peer.entmax_bisect(z, single)[:, 0].sum(), single)
    assert abs(float(ours) - float(exact)) < 1e-3
    assert abs(float(theirs) - float(exact)) > 1
