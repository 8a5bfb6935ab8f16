"""Log-probabilities for decoding: the fast ways, on CPU and by kernels, give what plain ones do."""

import pytest

torch = pytest.importorskip("torch")

import uncork.nn.functional as F  # noqa: E402
from uncork import UncorkError  # noqa: E402

from .with_kernels import DEVICE, MARKS, kernels_on  # noqa: E402

ALPHAS = [1.25, 1.5, 2.0, 3.0]
WIDTHS = [7, 600, 2053]  # narrow; few groups; many of them and a tail


def rows(width, dtype=torch.float32):
    """Sparse, dense, and one whose largest entries are past the last whole group."""
    z = 3 * torch.randn(6, width, generator=torch.Generator().manual_seed(0), dtype=dtype)
    z[1] *= 0.01
    z[2, -1], z[2, -2] = 30.0, 29.5
    z[3, : width // 2] = -torch.inf
    return z


def plain_log_alpha_relu(z, alpha, tau):
    """As it is where gradients are asked for."""
    return F.log_alpha_relu(z.detach().clone().requires_grad_(), alpha, tau).detach()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("tau", [-0.5, 0.2, 4.0])
def test_log_alpha_relu_without_gradients_is_that_with_them(width, alpha, tau):
    z = rows(width)
    torch.testing.assert_close(
        F.log_alpha_relu(z, alpha, tau), plain_log_alpha_relu(z, alpha, tau), atol=1e-5, rtol=1e-5
    )


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_log_alpha_relu_where_squares_leave_the_range(scale):
    z = rows(600)[[0, 1, 2, 4]].abs() * scale
    torch.testing.assert_close(
        F.log_alpha_relu(z, 1.5), plain_log_alpha_relu(z, 1.5, 0.0), atol=1e-5, rtol=1e-5
    )


def held_to_topk(found, log_p, z, k, dim=-1):
    torch.testing.assert_close(found.indices, z.topk(k, dim).indices)
    expected = log_p.gather(dim, found.indices)
    # The edge of the support, where a logarithm is steep: to the last bit of p.
    torch.testing.assert_close(found.values.exp(), expected.exp(), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("alpha", [1.0, *ALPHAS])
@pytest.mark.parametrize("k", [1, 5])
def test_the_best_classes_are_those_of_all_log_probabilities(width, alpha, k):
    z = rows(width, torch.float64)
    held_to_topk(F.log_entmax_topk(z, k, alpha), F.log_entmax(z, alpha), z, k)
    if alpha > 1:
        found = F.log_alpha_relu_topk(z, k, alpha, 0.2)
        held_to_topk(found, F.log_alpha_relu(z, alpha, 0.2), z, k)


@pytest.mark.parametrize("topk", [F.log_entmax_topk, F.log_alpha_relu_topk])
def test_more_than_the_support_are_filled_up_by_the_logits_order(topk):
    z = torch.arange(1000.0).flip(0).repeat(2, 1)
    z[1] = z[1].flip(0)
    found = topk(z, 40) if topk is F.log_entmax_topk else topk(z, 40, 1.5, 499.0)
    assert found.indices[0].tolist() == list(range(40))
    assert found.indices[1].tolist() == list(range(999, 959, -1))
    assert (found.values[:, 10:] == -torch.inf).all()


@pytest.mark.parametrize("topk", [F.log_entmax_topk, F.log_alpha_relu_topk])
def test_along_any_dimension_and_in_sixteen_bits(topk):
    z = rows(600).to(torch.bfloat16) + torch.arange(600) * 0.01  # no two alike
    along = z.t().contiguous()
    found, expected = topk(along, 3, dim=0), topk(z, 3)
    torch.testing.assert_close(found.values, expected.values.t())
    assert torch.equal(found.indices, expected.indices.t())
    assert topk(z.bfloat16(), 3).values.dtype == torch.bfloat16


def test_the_best_classes_log_probabilities_have_gradients():
    z = rows(600, torch.float64)[:3].requires_grad_()
    for topk, full in (
        (F.log_entmax_topk, F.log_entmax), (F.log_alpha_relu_topk, F.log_alpha_relu)
    ):  # fmt: skip
        found = topk(z, 1)
        expected = torch.autograd.grad(full(z).gather(-1, found.indices).sum(), z)
        torch.testing.assert_close(torch.autograd.grad(found.values.sum(), z), expected)


@pytest.mark.parametrize("topk", [F.log_entmax_topk, F.log_alpha_relu_topk])
@pytest.mark.parametrize("k", [0, 8])
def test_more_classes_than_there_are_is_refused(topk, k):
    with pytest.raises(UncorkError, match="between 1 and the 7 classes"):
        topk(rows(7), k)


@pytest.mark.parametrize("topk", [F.log_entmax_topk, F.log_alpha_relu_topk])
def test_a_dimension_that_does_not_exist_is_said(topk):
    with pytest.raises(IndexError, match="Dimension out of range"):
        topk(rows(7), 1, dim=2)


@pytest.mark.parametrize("log_p", [F.log_entmax, F.log_sparsemax, F.log_alpha_relu])
@pytest.mark.parametrize("gradient", [False, True])
def test_a_row_with_infinity_is_nan(log_p, gradient):
    z = rows(600)
    z[4, 5] = torch.inf
    found = log_p(z.requires_grad_(gradient))
    assert found[4].isnan().all()
    assert not found[torch.arange(6) != 4].isnan().any()


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_row_of_nan_is_nan(value):
    z = rows(2053)
    z[4, 5] = value
    for topk in (F.log_entmax_topk, F.log_alpha_relu_topk):
        values = topk(z, 3).values
        assert values[4].isnan().all()
        assert not values[torch.arange(6) != 4].isnan().any()


@pytest.mark.parametrize("alpha", [1.01, torch.tensor(1.01)])
def test_near_alpha_1_logarithms_and_gradients_outlast_what_p_can_hold(alpha):
    z = torch.tensor([[0.0, -42.5, -90.0, -200.0]])  # p of 1, 4e-31, 1e-100 and 0
    exact = F.log_entmax(z.double().requires_grad_(), alpha)
    for one in (z, z.clone().requires_grad_()):
        torch.testing.assert_close(F.log_entmax(one, alpha), exact.float(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(F.log_entmax_topk(z, 3, alpha).values, exact[:, :3].float())
    (gradient,) = torch.autograd.grad(F.log_entmax(one, alpha)[0, 2], one)
    torch.testing.assert_close(gradient, torch.tensor([[-10.0, 0, 10.0, 0]]), rtol=1e-4, atol=1e-9)
    # p of 6e-42: 1/p is infinite.
    one = torch.tensor([[0.0, -42.5]], requires_grad=True)
    (gradient,) = torch.autograd.grad(F.log_entmax(one, alpha + 0.01)[0, 1], one)
    torch.testing.assert_close(gradient, torch.tensor([[-6.6667, 6.6667]]), rtol=1e-4, atol=0)


@pytest.mark.parametrize("alpha", [1.05, 1.19, 1.2, 1.5, 2.0, 10.0, 50.0])
def test_logarithms_of_flat_and_of_sparse_rows_are_those_of_p(alpha):
    """In float32 by every way, held to exact ones in float64."""
    z = torch.cat([torch.full((1, 100), 0.3), rows(100)[[0, 1, 3]], rows(100)[:1] * 1e-3])
    exact = F.entmax(z.double(), alpha)
    given = [z, z.clone().requires_grad_(), z.double(), z.double().requires_grad_()]
    for one in given:
        for parameter in (alpha, torch.full((5, 1), alpha, dtype=one.dtype)):
            found = F.log_entmax(one, parameter)
            off = 2e-6 * max(1.0, alpha - 1) if one.dtype == torch.float32 else 1e-12
            torch.testing.assert_close(found.exp().double(), exact, atol=off, rtol=1e-4)
    torch.testing.assert_close(F.log_entmax(given[3], alpha)[0].exp(), exact[0])


@pytest.mark.parametrize("value", [1.0, 1.0 + 1e-9, 1.001, 1.19, 1.2, 1.5])
def test_log_entmax_has_a_gradient_in_alpha_at_and_near_1(value):
    z = rows(7, torch.float64)[[0, 1, 4, 5]] / 3

    def summed(alpha):
        log_p = F.log_entmax(z, alpha)
        return torch.where(log_p > -torch.inf, log_p, 0).sum(-1)

    alpha = torch.full((4, 1), value, dtype=torch.float64, requires_grad=True)
    step = 1e-6
    slope = (summed(alpha.detach() + step) - summed(alpha.detach() - step)) / (2 * step)
    (gradient,) = torch.autograd.grad(summed(alpha).sum(), alpha)
    torch.testing.assert_close(gradient.squeeze(1), slope, rtol=1e-5, atol=1e-6)


def test_a_step_of_beam_search_is_the_same_from_each_beams_best():
    from benchmarks.nn_decoding import from_all, from_best

    z, scores = rows(2053, torch.float64), torch.linspace(-2, 0, 6).double().unsqueeze(1)
    ours, plain = (
        from_best(z, scores, 2, F.log_entmax_topk), from_all(z, scores, 2, F.log_entmax)
    )  # fmt: skip
    torch.testing.assert_close(ours.scores, plain.scores)
    there = ours.scores > -torch.inf  # the others are in any order
    assert there.all(1).any()
    assert torch.equal(ours.beams[there], plain.beams[there])
    assert torch.equal(ours.classes[there], plain.classes[there])


def with_odd_rows(width):
    """`rows`, and one masked entirely, one with NaN, one with ties, one off every support."""
    z = torch.cat([rows(width), rows(width)[:4]])
    z[6] = -torch.inf
    z[7, 2] = torch.nan
    z[8, :3] = z[8].max() + 1
    z[9] -= 100
    return z


def by_kernels(marked):
    for mark in MARKS:
        marked = mark(marked)
    return marked


def as_exact(found, exact, z, k):
    """Values to the last bits of p where a logarithm is steep; any order among ties."""
    torch.testing.assert_close(
        z.gather(-1, found.indices), z.topk(k).values, atol=0, rtol=0, equal_nan=True
    )
    expected = exact.gather(-1, found.indices).float()
    torch.testing.assert_close(
        found.values.exp(), expected.exp(), atol=2e-6, rtol=1e-4, equal_nan=True
    )
    assert torch.equal(found.values == -torch.inf, expected == -torch.inf)


@by_kernels
@pytest.mark.parametrize("alpha", [1.01, *ALPHAS])
@pytest.mark.parametrize("width", [7, 601, 30_001])  # one tile or eight, one of them cut short
@pytest.mark.parametrize("few", [True, False])  # rows: many have fewer threads each
def test_kernels_give_the_best_classes_in_one_launch(alpha, width, few, monkeypatch):
    from uncork.nn.kernels import best

    monkeypatch.setattr(best, "multiprocessors", lambda device: 100 if few else 1)
    z, k = with_odd_rows(width), 5
    if width > 4096 * 6:
        z[0, 5::4096] += 20  # more of a support in one lane than it can keep
    z[4, :5] = torch.finfo(torch.float32).min  # masked as some models do it
    with kernels_on():
        found = F.log_entmax_topk(z.to(DEVICE), k, alpha)
        relu = F.log_alpha_relu_topk(z.to(DEVICE), k, max(alpha, 1.25), 0.2)
    as_exact(F.LogTopK(*(one.cpu() for one in found)), F.log_entmax(z.double(), alpha), z, k)
    exact = plain_log_alpha_relu(z.double(), max(alpha, 1.25), 0.2)
    as_exact(F.LogTopK(*(one.cpu() for one in relu)), exact, z, k)


@by_kernels
@pytest.mark.parametrize("alpha", [1.01, *ALPHAS])
@pytest.mark.parametrize("few", [True, False])  # rows: few have a kernel of their own
def test_a_kernel_writes_all_log_probabilities_in_one_pass(alpha, width, few, monkeypatch):
    from uncork.nn.kernels import best

    monkeypatch.setattr(best, "multiprocessors", lambda device: 5 if few else 4)
    z = with_odd_rows(width)[[0, 1, 3, 6, 7]]
    with kernels_on():
        found = F.log_entmax(z.to(DEVICE), alpha).cpu()
    expected = F.log_entmax(z.double(), alpha).float()
    torch.testing.assert_close(found.exp(), expected.exp(), atol=2e-6, rtol=1e-4, equal_nan=True)
    assert found[4].isnan().all()
    assert (found[3] == -torch.inf).all()


@by_kernels
@pytest.mark.parametrize("alpha", ALPHAS)
def test_a_kernel_writes_all_scores_of_alpha_relu(alpha):
    z = with_odd_rows(601)
    with kernels_on():
        found = F.log_alpha_relu(z.to(DEVICE), alpha, 0.2).cpu()
    expected = plain_log_alpha_relu(z.double(), alpha, 0.2).float()
    torch.testing.assert_close(found.exp(), expected.exp(), atol=2e-6, rtol=1e-4, equal_nan=True)
    assert torch.equal(found == -torch.inf, expected == -torch.inf)


@pytest.mark.parametrize("alpha", [1.1, 1.25, 1.5])
def test_entries_sorted_out_of_many_groups_are_those_of_the_row(alpha, monkeypatch):
    from uncork.nn.transforms import grouped

    z = rows(2053)[[0, 2, 3, 4, 5]]
    expected = F.log_entmax(z.double(), alpha)
    monkeypatch.setattr(grouped, "_MANY", 1)
    monkeypatch.setattr(grouped, "_KEEP_AT_MOST", 1)
    found = F.log_entmax(z, alpha)
    torch.testing.assert_close(found.exp(), expected.exp().float(), atol=1e-6, rtol=1e-5)
    held_to_topk(F.log_entmax_topk(z, 3, alpha), expected.float(), z, 3)


@by_kernels
def test_sixteen_bits_and_any_dimension_by_kernels():
    z = (rows(600) + torch.arange(600) * 0.01).to(torch.bfloat16)
    with kernels_on():
        found = F.log_entmax_topk(z.t().to(DEVICE), 3, dim=0)
    expected = F.log_entmax_topk(z, 3)
    assert found.values.dtype == torch.bfloat16
    torch.testing.assert_close(found.values.cpu().t(), expected.values, atol=0.02, rtol=0.02)
    torch.testing.assert_close(
        z.gather(1, found.indices.cpu().t()), z.gather(1, expected.indices), atol=0, rtol=0
    )
