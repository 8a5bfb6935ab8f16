"""At the edges of what transforms and losses take: α below 1 or by row, no classes, inf, NaN."""

import math

import pytest

torch = pytest.importorskip("torch")

import uncork.nn as unn  # noqa: E402
import uncork.nn.functional as F  # noqa: E402
from uncork import UncorkError  # noqa: E402

LOSSES = ["softmax_loss", "sparsemax_loss", "entmax_loss", "alpha_relu_loss", "normmax_loss"]
TRANSFORMS = ["sparsemax", "entmax", "normmax", "budget", "alpha_relu", "log_entmax"]


def logits(rows=3, classes=9, seed=0):
    return torch.randn(rows, classes, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("classes", [9, 700])  # solved directly, and by groups
@pytest.mark.parametrize("alpha", [0.2, 0.8])
def test_alpha_below_one_is_the_same_as_a_number_and_as_a_tensor(alpha, classes):
    z = logits(classes=classes).double().requires_grad_()
    target = torch.tensor([1, 0, 5])
    tensor = torch.tensor(alpha, dtype=torch.float64)
    for function in (F.entmax, lambda z, a: F.entmax_loss(z, target, alpha=a)):
        found, expected = function(z, alpha), function(z, tensor)
        torch.testing.assert_close(found, expected)
        gradients = [torch.autograd.grad(value.square().sum(), z)[0] for value in (found, expected)]
        torch.testing.assert_close(*gradients)
    p = F.entmax(z, alpha)
    torch.testing.assert_close(p.sum(-1), torch.ones(3, dtype=torch.float64))
    assert (p > 0).all()
    # p = exp_α(z − S): [1 + (α−1)(z − S)] = p^{α−1} has the slope α − 1 in z.
    level = p.pow(alpha - 1) / (alpha - 1) - z
    torch.testing.assert_close(level, level[:, :1].expand_as(level))


def test_linear_losses_refuse_alpha_below_one():
    with pytest.raises(UncorkError, match="alpha must be finite and >= 1"):
        F.linear_entmax_loss(logits(3, 4), logits(5, 4), torch.tensor([0, 1, 2]), alpha=0.5)


@pytest.mark.parametrize("name", ["entmax", "log_entmax", "normmax", "budget"])
def test_a_value_for_each_row_has_the_rows_shape_or_that_of_the_input(name):
    z, value = logits(), torch.tensor([1.2, 1.5, 2.0])
    function = getattr(F, name)
    torch.testing.assert_close(function(z, value), function(z, value[:, None]))
    torch.testing.assert_close(function(z.T, value, 0), function(z.T, value[None], 0))


@pytest.mark.parametrize("shape", [(3,), (3, 1)])
def test_a_loss_takes_alpha_by_row_in_either_shape(shape):
    z, target = logits(), torch.tensor([1, 0, 5])
    alpha = torch.tensor([1.2, 1.5, 2.0])
    found = F.entmax_loss(z, target, alpha=alpha.reshape(shape), reduction="none")
    expected = [F.entmax_loss(z[i], target[i], alpha=float(alpha[i])) for i in range(3)]
    torch.testing.assert_close(found, torch.stack(expected))


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("amount", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("as_tensor", [False, True])
def test_a_row_of_budget_with_nan_or_inf_is_nan_as_softmaxs_and_no_other(value, amount, as_tensor):
    z = logits()
    expected = F.budget(z, amount)
    z[1, 2] = value
    found = F.budget(z, torch.tensor(amount) if as_tensor else amount)
    assert torch.softmax(z, -1)[1].isnan().all()
    assert found[1].isnan().all()
    torch.testing.assert_close(found[[0, 2]], expected[[0, 2]])


@pytest.mark.parametrize("name", TRANSFORMS)
def test_no_classes_give_no_probabilities(name):
    z = torch.empty(3, 0, requires_grad=True)
    p = getattr(F, name)(z)
    assert p.shape == (3, 0)
    p.sum().backward()
    assert z.grad.shape == (3, 0)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("rows", [0, 2])
def test_a_loss_of_no_classes_is_what_cross_entropy_gives(name, rows):
    z, ignored = torch.empty(rows, 0), torch.full((rows,), -100)
    for target in (ignored, torch.empty(rows, 0)):
        for reduction in ("none", "sum", "mean"):
            found = getattr(F, name)(z, target, reduction=reduction)
            expected = torch.nn.functional.cross_entropy(z, target, reduction=reduction)
            torch.testing.assert_close(found, expected, equal_nan=True)


@pytest.mark.parametrize("name", LOSSES)
def test_weight_may_come_third_as_in_cross_entropy(name):
    z, target, weight = logits(), torch.tensor([1, 0, 5]), torch.rand(9)
    loss = getattr(F, name)
    assert torch.equal(loss(z, target, weight), loss(z, target, weight=weight))


def test_modules_take_alpha_below_one():
    assert (unn.Entmax(0.5)(logits()) > 0).all()
