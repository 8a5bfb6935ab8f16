"""The kernels of the losses of logits against float64: on a GPU, or in Triton's interpreter."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

import uncork.nn.functional as F  # noqa: E402
from uncork.nn.losses import fenchel_young, specification  # noqa: E402

from .with_kernels import DEVICE, MARKS, kernels_on  # noqa: E402

pytestmark = MARKS
LOSSES = {
    "alpha_relu": (F.alpha_relu_loss, {"tau": 0.3}),
    "alpha_relu 1.3": (F.alpha_relu_loss, {"alpha": 1.3, "tau": 0.3}),
    "entmax": (F.entmax_loss, {}),
    "entmax 1.2": (F.entmax_loss, {"alpha": 1.2}),
    "sparsemax": (F.sparsemax_loss, {}),
}


def made(n, std, dtype=torch.float32):
    g = torch.Generator().manual_seed(0)
    z = (torch.randn(3, n, generator=g) * std).to(dtype).to(DEVICE).requires_grad_()
    return z, torch.tensor([n - 1, -100, 7], device=DEVICE)


def value_and_gradient(loss, z, target, **options):
    value = loss(z, target, **options)
    upstream = torch.linspace(0.5, 1.5, value.numel()).reshape(value.shape).to(value)
    return value.detach(), *torch.autograd.grad(value, z, upstream)


def assert_near(got, expected, tolerance):
    error = (got.double().cpu() - expected).norm()
    assert error <= tolerance * expected.norm() + 1e-6, float(error)


@pytest.mark.parametrize("std", [0.02, 1.0, 20.0])
@pytest.mark.parametrize("name", LOSSES)
def test_losses_and_gradients_equal_float64(name, std, width):
    loss, options = LOSSES[name]
    z, target = made(width, std)
    wide = z.detach().double().cpu().requires_grad_()
    with kernels_on():
        got = value_and_gradient(loss, z, target, reduction="none", **options)
    exact = value_and_gradient(loss, wide, target.cpu(), reduction="none", **options)
    for mine, truth in zip(got, exact, strict=True):
        assert_near(mine, truth, 1e-5)


@pytest.mark.parametrize("name", ["alpha_relu", "entmax"])
def test_bfloat16_is_read_as_it_is(name, width):
    loss, options = LOSSES[name]
    z, target = made(width, 1.0, torch.bfloat16)
    wide = z.detach().double().cpu().requires_grad_()
    with kernels_on():
        value, gradient = value_and_gradient(loss, z, target, **options)
        with torch.autocast(DEVICE, torch.bfloat16):
            unrounded = loss(z, target, **options)
    exact = value_and_gradient(loss, wide, target.cpu(), **options)
    assert value.dtype == gradient.dtype == torch.bfloat16
    assert unrounded.dtype == torch.float32
    assert_near(unrounded.detach(), exact[0], 1e-4)
    assert_near(gradient, exact[1], 1e-2)


@pytest.mark.parametrize("name", ["alpha_relu", "entmax"])
def test_weights_smoothing_and_dimensions_after_the_classes(name):
    loss, options = LOSSES[name]
    g = torch.Generator().manual_seed(0)
    z = torch.randn(2, 40, 3, generator=g).to(DEVICE).requires_grad_()
    target = torch.randint(0, 40, (2, 3), generator=g).to(DEVICE)
    weight = torch.rand(40, generator=g).to(DEVICE)
    wide = z.detach().double().cpu().requires_grad_()
    options = {**options, "label_smoothing": 0.1}
    with kernels_on():
        got = value_and_gradient(loss, z, target, weight=weight, **options)
    exact = value_and_gradient(loss, wide, target.cpu(), weight=weight.double().cpu(), **options)
    for mine, truth in zip(got, exact, strict=True):
        assert_near(mine, truth, 1e-5)


@pytest.mark.parametrize("name", ["alpha_relu", "entmax"])
def test_second_derivatives(name):
    loss, options = LOSSES[name]
    z, target = made(30, 1.0)
    along = torch.linspace(-1, 1, z.numel()).reshape(z.shape)

    def twice(z, target):
        (first,) = torch.autograd.grad(loss(z, target, **options), z, create_graph=True)
        return torch.autograd.grad((first * along.to(first)).sum(), z)[0]

    with kernels_on():
        got = twice(z, target)
    wide = z.detach().double().cpu().requires_grad_()
    assert_near(got, twice(wide, target.cpu()), 1e-4)


@pytest.mark.parametrize("name", ["alpha_relu", "entmax"])
def test_a_nan_and_a_class_that_is_not_there_spoil_their_row(name, width):
    family = specification.LOSSES[name].family
    parameters = (1.5,) if name == "entmax" else (1.5, 0.3)
    z, _ = made(width, 1.0)
    z = z.detach()
    z[0, 3] = torch.nan
    target = torch.tensor([1, width, 2], device=DEVICE)
    with kernels_on():
        value, _ = family.fused(z, parameters)(z, target, -100)
    assert value.isnan().tolist() == [True, True, False]


@pytest.mark.parametrize("name", ["alpha_relu", "entmax"])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_reductions_of_few_rows_of_many_and_of_none(name, reduction, monkeypatch):
    loss, options = LOSSES[name]
    options = {**options, "reduction": reduction}
    z, target = made(60, 1.0)
    wide = z.detach().double().cpu().requires_grad_()
    exact = value_and_gradient(loss, wide, target.cpu(), **options)
    with kernels_on():
        few = value_and_gradient(loss, z, target, **options)
        monkeypatch.setattr(fenchel_young, "ONE_PROGRAM", 0)
        many = value_and_gradient(loss, z, target, **options)
        none, gradient = value_and_gradient(loss, z, torch.full_like(target, -100), **options)
    for got in (few, many):
        for mine, truth in zip(got, exact, strict=True):
            assert_near(mine, truth, 1e-5)
    assert float(none) == 0 if reduction == "sum" else none.isnan()
    assert reduction == "mean" or not gradient.any()
