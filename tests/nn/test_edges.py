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
    assert "alpha: ≥ 1;" in F.linear_entmax_loss.__doc__
    assert "alpha: > 0;" in F.entmax_loss.__doc__


@pytest.mark.parametrize("name", ["entmax", "log_entmax", "normmax", "budget"])
def test_a_value_for_each_row_has_the_rows_shape_or_that_of_the_input(name):
    z, value = logits(), torch.tensor([1.2, 1.5, 2.0])
    function = getattr(F, name)
    torch.testing.assert_close(function(z, value), function(z, value[:, None]))
    torch.testing.assert_close(function(z.T, value, 0), function(z.T, value[None], 0))


@pytest.mark.parametrize("name", ["entmax", "log_entmax", "normmax", "budget"])
def test_a_value_for_each_row_fits_where_one_token_is_decoded_at_a_time(name):
    z, value = logits().unsqueeze(1), torch.tensor([1.2, 1.5, 2.0])
    function = getattr(F, name)
    torch.testing.assert_close(function(z, value[:, None]), function(z, value[:, None, None]))


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


def test_a_budget_of_nan_is_nan_in_its_row_and_no_other():
    z, amount = logits(), torch.tensor([1.0, math.nan, 2.5], requires_grad=True)
    found = F.budget(z, amount)
    assert found[1].isnan().all()
    torch.testing.assert_close(found[[0, 2]], F.budget(z[[0, 2]], amount[[0, 2]]))
    assert F.budget(z, torch.tensor(math.nan)).isnan().all()


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("alpha", [0.5, 1.0, 1.05, 1.3, 1.5, 2.0, 3.0])
@pytest.mark.parametrize("classes", [9, 700])
def test_a_row_with_nan_or_inf_is_nan_as_softmaxs_and_no_other(value, alpha, classes):
    z = logits(classes=classes)
    z[1, 2] = value
    others = z[[0, 2]]
    for transform in (
        lambda z: F.entmax(z, alpha),
        lambda z: F.entmax(z, torch.tensor(alpha)),
        lambda z: F.log_entmax(z, alpha),
        lambda z: torch.vmap(lambda row: F.entmax(row, alpha))(z),
        lambda z: F.normmax(z, alpha + 1),
        lambda z: F.log_alpha_relu(z, alpha + 1),
        lambda z: F.log_alpha_relu_topk(z, 5, alpha + 1).values,
    ):
        found = transform(z)
        assert found[1].isnan().all()
        torch.testing.assert_close(found[[0, 2]], transform(others))


@pytest.mark.parametrize("alpha", [12.0, 50.0, 200.0])
def test_normmax_of_large_alpha_is_that_of_float64(alpha):
    z = (0.01 * logits(3, 50)).requires_grad_()
    wide = z.detach().double().requires_grad_()
    upstream, target = logits(3, 50, seed=1), torch.tensor([1, 0, 5])
    for function in (
        lambda z: (F.normmax(z, alpha) * upstream).sum(),
        lambda z: F.normmax_loss(z, target, alpha=alpha),
        lambda z: F.normmax_loss(z, target, alpha=alpha).square(),
    ):
        found, expected = function(z), function(wide)
        torch.testing.assert_close(found, expected.float())
        gradients = [torch.autograd.grad(*pair)[0] for pair in ((found, z), (expected, wide))]
        torch.testing.assert_close(gradients[0], gradients[1].float(), atol=1e-5, rtol=1e-3)
    with torch.no_grad():  # ‖p‖_α ≥ 1/n: what a sum of powers that underflow would not say
        flat = F.normmax_loss(torch.zeros(1, 50), target[:1], alpha=alpha)
        assert abs(float(flat) - (1 - 50 ** (1 / alpha - 1))) < 1e-6


@pytest.mark.parametrize("dtype", [torch.int64, torch.complex64])
def test_what_is_not_floating_point_is_refused_by_name(dtype):
    z = torch.ones(2, 3, dtype=dtype)
    for transform in (*(getattr(F, name) for name in TRANSFORMS), lambda z: F.log_entmax(z, 1.0)):
        with pytest.raises(UncorkError, match="floating-point tensor, got dtype"):
            transform(z)


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
            smooth = getattr(F, name)(z, target, reduction=reduction, label_smoothing=0.1)
            torch.testing.assert_close(smooth, found, equal_nan=True)


@pytest.mark.parametrize("option", ["label_smoothing", "probabilities", None])
@pytest.mark.parametrize(
    ("name", "learned"),
    [("entmax_loss", "alpha"), ("alpha_relu_loss", "tau"), ("linear_alpha_relu_loss", "tau")],
)
def test_what_is_learned_has_a_gradient_of_0_in_a_batch_of_no_rows(name, learned, option):
    """As the weights of a layer have: nobody is left without one where some batches are empty."""
    value = torch.tensor(1.25, requires_grad=True)
    target = torch.empty(0, 9) if option == "probabilities" else torch.empty(0, dtype=torch.int64)
    how = {"label_smoothing": 0.1} if option == "label_smoothing" else {}
    linear = name.startswith("linear")
    given = (torch.empty(0, 4), torch.randn(9, 4)) if linear else (torch.empty(0, 9),)
    made = getattr(F, name)(*given, target, reduction="sum", **{learned: value}, **how)
    for again in (False, True):
        (slope,) = torch.autograd.grad(made, value, retain_graph=True, create_graph=again)
        assert slope == 0


@pytest.mark.parametrize("name", LOSSES)
def test_weight_may_come_third_as_in_cross_entropy(name):
    z, target, weight = logits(), torch.tensor([1, 0, 5]), torch.rand(9)
    loss = getattr(F, name)
    assert torch.equal(loss(z, target, weight), loss(z, target, weight=weight))


def test_modules_take_alpha_below_one():
    assert (unn.Entmax(0.5)(logits()) > 0).all()


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda value: F.entmax(logits(), value), "alpha must be finite and > 0, got 0.0"),
        (lambda value: F.log_entmax(logits(), value), "alpha must be finite and > 0, got 0.0"),
        (lambda value: F.alpha_relu(logits(), value), "alpha must be finite and > 1, got 0.0"),
        (lambda value: F.normmax(logits(), value), "alpha must be finite and > 1, got 0.0"),
        (lambda value: F.budget(logits(), value - 1), "budget must be finite and >= 0, got -1.0"),
    ],
)
@pytest.mark.parametrize("form", [float, torch.tensor, lambda one: torch.tensor([1.5, one, 1.5])])
def test_a_tensor_is_held_to_the_same_bounds_as_a_number(call, says, form):
    with pytest.raises(UncorkError, match=says):
        call(form(0.0))


X, W, Y = torch.randn(2, 4), torch.randn(3, 4), torch.tensor([0, 2])


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: F.entmax_loss(torch.randn(2, 3), Y, weight=[1, 1, 1]), "weight"),
        (lambda: F.linear_entmax_loss(X, W.tolist(), Y), "linear_weight"),
        (lambda: F.linear_entmax_loss(X, W, Y, linear_bias=[0, 0, 0]), "linear_bias"),
        (lambda: F.linear_entmax_loss(X, W, Y, token_weight=[1, 1]), "token_weight"),
        (lambda: F.linear_log_prob(X.tolist(), W, Y), "input"),
        (lambda: F.linear_log_prob(X, W, [0, 2]), "target"),
        (lambda: F.linear_distillation_loss(X, W, [[0.0] * 3] * 2), "teacher"),
        (lambda: F.linear_distillation_loss(X, W, X, teacher_weight=W.tolist()), "teacher_weight"),
        (lambda: F.linear_distillation_loss(X, W, X, teacher_classes=[[0]]), "teacher_classes"),
    ],
)
def test_a_list_in_place_of_a_tensor_is_refused_by_name(call, says):
    with pytest.raises(TypeError, match=f"^{says} must be a torch.Tensor, got list"):
        call()


@pytest.mark.parametrize("value", [None, [1.5, 1.5], "high"])
@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda value: F.entmax(logits(), value), "alpha"),
        (lambda value: F.budget(logits(), value), "budget"),
        (lambda value: F.entmax_loss(torch.randn(2, 3), Y, alpha=value), "alpha"),
        (lambda value: F.linear_entmax_loss(X, W, Y, alpha=value), "alpha"),
        (lambda value: F.linear_alpha_relu_loss(X, W, Y, tau=value), "tau"),
        (lambda value: F.linear_log_prob(X, W, Y, alpha=value), "alpha"),
        (lambda value: unn.EntmaxLoss(value), "alpha"),
    ],
)
def test_a_parameter_that_is_no_number_is_refused_by_name(call, says, value):
    with pytest.raises(UncorkError, match=f"^{says} must be a number or a tensor, got"):
        call(value)


def test_an_alpha_that_cannot_be_learned_is_one_number():
    with pytest.raises(UncorkError, match="alpha must be one number here, got tensor"):
        F.normmax_loss(torch.randn(2, 3), Y, alpha=torch.tensor([1.5, 2.0]))


@pytest.mark.parametrize("name", LOSSES)
def test_a_target_that_is_no_tensor_is_refused_by_name(name):
    with pytest.raises(UncorkError, match="target must be a tensor of class indices, got list"):
        getattr(F, name)(logits(), [1, 0, 5])
