"""The Triton kernels of the transforms against float64: on a GPU, or in Triton's interpreter."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")


import uncork.nn.functional as F  # noqa: E402
from uncork.nn.transforms import threshold  # noqa: E402
from uncork.nn.transforms.entmax import entmax_vjp  # noqa: E402

from .with_kernels import DEVICE, MARKS, ON_GPU, kernels_on  # noqa: E402

pytestmark = MARKS
ALPHAS = [1.3, 1.5, 2.0, 3.0]
# Error of a result relative to float64's, in units of the dtype. The interpreter cuts bfloat16 off
# where a GPU rounds.
TOLERANCE = {torch.float32: 4e-6, torch.float16: 5e-4, torch.bfloat16: 5e-3}


def logits(rows, n, std, dtype=torch.float32, seed=0):
    g = torch.Generator().manual_seed(seed)
    return (torch.randn(rows, n, generator=g) * std).to(dtype).to(DEVICE)


def assert_near(got, expected, dtype=torch.float32):
    error = (got.double() - expected).norm()
    assert error <= TOLERANCE[dtype] * expected.norm() + 1e-6


@pytest.mark.parametrize("std", [0.0, 0.03, 1.0, 30.0])
@pytest.mark.parametrize("alpha", ALPHAS)
def test_entmax_and_its_gradient_equal_float64(alpha, std, width):
    z = logits(2, width, std).requires_grad_()
    upstream = torch.randn(z.shape, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    with kernels_on():
        p = F.entmax(z, alpha)
        (dz,) = torch.autograd.grad(p, z, upstream)
    exact = F.entmax(z.detach().double().cpu(), alpha)
    assert_near(p.detach().cpu(), exact)
    assert abs(float(p.detach().double().sum(-1)[0]) - 1) < 1e-5
    with torch.no_grad():
        assert_near(dz.cpu(), entmax_vjp(p.cpu().double(), upstream.cpu().double(), alpha))


@pytest.mark.parametrize("alpha", [2.5, 3.0, 20.0])
def test_a_gradient_beside_a_vertical_tangent_equals_float64(alpha):
    p = torch.tensor([[0.6, 0.4, 1e-9]], device=DEVICE)
    upstream = torch.tensor([[1.0, 2.0, 4.0]], device=DEVICE)
    with kernels_on(), torch.no_grad():
        found = entmax_vjp(p, upstream, alpha)
    p, upstream = p.cpu().double(), upstream.cpu().double()
    slope = p.pow(2 - alpha)
    apart = upstream[:, :, None] - upstream[:, None, :]
    expected = (slope[:, :, None] * (slope / slope.sum())[:, None, :] * apart).sum(-1)
    assert_near(found.cpu(), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("alpha", [1.5, 2.0])
def test_sixteen_bit_rows_stay_sixteen_bit(alpha, dtype, width):
    z = logits(3, width, 1.0, dtype).requires_grad_()  # odd rows begin off every alignment
    with kernels_on():
        p = F.entmax(z, alpha)
        (dz,) = torch.autograd.grad(p, z, torch.ones_like(p) * z.detach())
    assert p.dtype == dz.dtype == dtype
    exact = F.entmax(z.detach().double().cpu(), alpha)
    assert_near(p.detach().cpu(), exact, dtype)
    with torch.no_grad():
        expected = entmax_vjp(p.cpu().double(), z.cpu().double(), alpha)
    assert_near(dz.cpu(), expected, dtype)


@pytest.mark.parametrize("alpha", [1.5, 2.0])
def test_masked_entries_masked_rows_and_nan(alpha, width):
    z = logits(4, width, 1.0)
    z[0, ::3] = -torch.inf
    z[1] = -torch.inf
    z[2, 5] = torch.nan
    z[3] = -torch.inf
    z[3, -1] = 4.0
    with kernels_on():
        p = F.entmax(z, alpha)
    assert (p[0, ::3] == 0).all()
    assert_near(p[0].cpu(), F.entmax(z[0].double().cpu(), alpha))
    assert (p[1] == 0).all()
    assert p[2].isnan().any()
    assert p[3, -1] == 1
    assert p[3].sum() == 1


def test_equal_logits_share_evenly_for_large_alpha(width):
    """Where Newton's step has cancelled, and halving an interval takes too many steps."""
    z = torch.cat([logits(1, width, 0.0), logits(1, width, 1e-4)])
    with kernels_on():
        p = F.entmax(z, 10.0)
    torch.testing.assert_close(p[0], torch.full_like(p[0], 1 / width), rtol=1e-5, atol=0)


def test_large_logits_and_large_spreads(width):
    z = logits(2, width, 1.0)
    z[0] += 1e4
    z[1] *= 1e8
    with kernels_on():
        p = F.sparsemax(z)
    assert_near(p.cpu(), F.sparsemax(z.double().cpu()))


def test_any_strides(width):
    wide = logits(4, 2 * width + 7, 1.0)
    views = [
        wide[:, 3 : 3 + width],  # rows apart, begun anywhere
        wide[:, ::2][:, :width],  # entries apart
        wide[:1, :width].expand(3, width),
        wide[::2, :width],
    ]
    for view in views:
        with kernels_on():
            p = F.entmax(view, 1.5)
        assert_near(p.cpu(), F.entmax(view.double().cpu(), 1.5))


def test_any_dimension():
    z = logits(6, 35, 1.0).reshape(6, 5, 7)
    for dim in (0, 1, -1):
        with kernels_on():
            p = F.entmax(z, 1.5, dim)
        assert_near(p.cpu(), F.entmax(z.double().cpu(), 1.5, dim))


def test_alpha_for_every_row_is_solved_by_a_kernel(width):
    z = logits(4, width, 1.0).requires_grad_()
    alpha = torch.tensor([[1.0], [1.4], [2.0], [2.7]], device=DEVICE, requires_grad=True)
    with kernels_on():
        from uncork.nn.kernels.entmax import entmax_shift

        s = entmax_shift(z.detach(), alpha.detach())
    exact_z, exact_alpha = z.detach().double().cpu(), alpha.detach().double().cpu()
    p = F.entmax(exact_z, exact_alpha)
    v = exact_z - exact_z.amax(-1, keepdim=True)
    again = F.alpha_relu(v[1:], exact_alpha[1:], s[1:].cpu().double() * (exact_alpha[1:] - 1) - 1)
    assert_near(again, p[1:])
    torch.testing.assert_close(s[0].cpu().double(), v[0].exp().sum().log()[None])


@pytest.mark.parametrize("by_row", [False, True])
def test_the_level_of_steep_rows_is_found_by_a_kernel(by_row, width):
    """c of α > 2, in nearly flat rows far smaller than s is rounded by."""
    z = torch.cat([logits(1, width, 1.0), logits(1, width, 1e-6), logits(1, width, 0.0)])
    v = z - z.amax(-1, keepdim=True)
    alpha = torch.tensor([[2.5], [3.0], [4.0]], device=DEVICE) if by_row else 3.0
    with kernels_on():
        c = threshold.power_level(v, alpha)
    exact = alpha.cpu().double() if by_row else alpha
    p = threshold.by_power(v.cpu().double(), exact, c.cpu().double())
    torch.testing.assert_close(p, F.entmax(v.cpu().double(), exact), rtol=1e-4, atol=1e-9)


def test_second_derivatives_pass_through():
    z = logits(2, 9, 1.0).requires_grad_()
    with kernels_on():
        p = F.entmax(z, 1.5)
        (dz,) = torch.autograd.grad(p.square().sum(), z, create_graph=True)
        (got,) = torch.autograd.grad(dz.square().sum(), z)
    y = z.detach().double().cpu().requires_grad_()
    (dy,) = torch.autograd.grad(F.entmax(y, 1.5).square().sum(), y, create_graph=True)
    (expected,) = torch.autograd.grad(dy.square().sum(), y)
    torch.testing.assert_close(got.double().cpu(), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("given", [float, torch.Tensor])
def test_alpha_relu_and_its_gradient_equal_float64(alpha, dtype, given):
    z = logits(3, 1111, 1.0, dtype).requires_grad_()
    z.data[0, 0] = -torch.inf
    tau = 0.3 if given is float else torch.tensor(0.3, device=DEVICE, requires_grad=True)
    with kernels_on():
        p = F.alpha_relu(z, alpha, tau)
        p.backward(torch.ones_like(p))
    y = z.detach().double().cpu().requires_grad_()
    level = 0.3 if given is float else torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    exact = F.alpha_relu(y, alpha, level)
    exact.backward(torch.ones_like(exact))
    assert p.dtype == z.grad.dtype == dtype
    assert_near(p.detach().cpu(), exact.detach(), dtype)
    assert_near(z.grad.cpu(), y.grad, dtype)
    if given is torch.Tensor:
        torch.testing.assert_close(tau.grad.cpu().double(), level.grad, rtol=0.01, atol=0.01)


def test_alpha_relu_takes_permuted_and_sliced_tensors():
    z = logits(6, 20, 1.0).reshape(6, 4, 5)
    for view in (z.permute(2, 0, 1), z[:, 1:3], z[:, :1].expand(6, 3, 5), z[0, 0, 0]):
        leaf = view.detach().requires_grad_()
        with kernels_on():
            p = F.alpha_relu(leaf, 1.5, 0.1)
            (dz,) = torch.autograd.grad(p.sum(), leaf)
        y = view.double().cpu().requires_grad_()
        exact = F.alpha_relu(y, 1.5, 0.1)
        torch.testing.assert_close(p.double().cpu(), exact, rtol=1e-5, atol=1e-6)
        (expected,) = torch.autograd.grad(exact.sum(), y)
        torch.testing.assert_close(dz.double().cpu(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.skipif(not ON_GPU, reason="17 GB of memory, and a GPU")
@pytest.mark.parametrize("function", [F.sparsemax, F.alpha_relu])
def test_more_than_two_to_the_31_elements(function):
    z = torch.randn(17_000, 131_072, device="cuda", dtype=torch.bfloat16)
    p = function(z)
    torch.testing.assert_close(p[-3:], function(z[-3:]))


@pytest.mark.skipif(not ON_GPU, reason="needs a GPU")
def test_vocabularies_of_half_a_million():
    for dtype in (torch.float32, torch.bfloat16):
        z = torch.randn(3, 512_000, device="cuda").to(dtype)
        assert_near(F.entmax(z, 1.5).cpu(), F.entmax(z.double().cpu(), 1.5), dtype)


@pytest.mark.parametrize("alpha", [1.05, 1.5, 2.0, 5.0])
def test_normmax_is_solved_by_the_kernel_of_entmax(alpha, width):
    z = logits(3, width, 1.0)
    z[1, ::3] = -torch.inf
    z[2] = -torch.inf
    with kernels_on():
        p = F.normmax(z, alpha)
        by_row = F.normmax(z, torch.full((3, 1), alpha, device=DEVICE))
    exact = F.normmax(z.double().cpu(), alpha)
    assert_near(p.cpu(), exact)
    assert_near(by_row.cpu(), exact)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("alpha", ALPHAS)
def test_a_row_with_nan_or_inf_is_nan_and_no_other(alpha, value, width):
    z = logits(3, width, 1.0)
    z[1, 5] = value
    target = torch.tensor([1, 0, 5], device=DEVICE)
    with kernels_on():
        for made in (
            F.entmax(z, alpha),
            F.log_entmax(z, alpha),
            F.entmax_loss(z, target, alpha=alpha, reduction="none"),
        ):
            assert made[1].isnan().all()
            assert not made[[0, 2]].isnan().any()


KINDS = {
    "entmax": lambda z: F.entmax(z, 1.5),
    "log_entmax": lambda z: F.log_entmax(z, 1.0001),
    "alpha_relu": lambda z: F.alpha_relu(z, 1.5, -3.0),
    "log_alpha_relu": lambda z: F.log_alpha_relu(z, 1.5, -3.0),
    "entmax_loss": lambda z: F.entmax_loss(z, torch.zeros(2, dtype=torch.int64, device=z.device)),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own, in forward mode
@pytest.mark.parametrize("name", KINDS)
def test_what_traces_or_batches_goes_past_the_kernels(name):
    """make_fx and jacobian(vectorize=True) see no launch; dual numbers would lose their tangent."""
    from torch.fx.experimental.proxy_tensor import make_fx

    function, z = KINDS[name], logits(2, 9, 1.0)
    jacobian = torch.autograd.functional.jacobian
    expected = function(2 * z), jacobian(function, z)
    with kernels_on():
        traced = make_fx(function)(z)(2 * z)
        torch.testing.assert_close(traced, expected[0])
        torch.testing.assert_close(jacobian(function, z, vectorize=True), expected[1])
        forward = jacobian(function, z, vectorize=True, strategy="forward-mode")
        torch.testing.assert_close(forward, expected[1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("alpha", [3.5, 10.0])
def test_steep_alphas_sum_to_one_where_kernels_take_the_others(alpha, dtype):
    """At the edge of the support the last bit of a threshold is hundredths of a probability."""
    z = logits(9, 500, 1e-3, dtype)
    target = torch.arange(9, device=DEVICE)
    exact = F.entmax(z.double().cpu(), alpha)
    with kernels_on():
        p = F.entmax(z, alpha, dtype=torch.float32).cpu()
        log_p = F.log_entmax(z, alpha, dtype=torch.float32).cpu()
        best = F.log_entmax_topk(z, 3, alpha, dtype=torch.float32)
        loss = F.entmax_loss(z.float(), target, alpha=alpha).cpu()
        eye = torch.eye(500, device=DEVICE)
        linear = F.linear_entmax_loss(z.float(), eye, target, alpha=alpha).cpu()
    torch.testing.assert_close(p.double(), exact, atol=1e-6, rtol=1e-4)
    torch.testing.assert_close(log_p.double().exp(), exact, atol=1e-6, rtol=1e-4)
    found = exact.gather(1, best.indices.cpu())
    torch.testing.assert_close(best.values.cpu().double().exp(), found, atol=1e-6, rtol=1e-4)
    truth = F.entmax_loss(z.double().cpu(), target.cpu(), alpha=alpha).float()
    torch.testing.assert_close(loss, truth, atol=1e-6, rtol=1e-4)
    torch.testing.assert_close(linear, truth, atol=1e-6, rtol=1e-4)
