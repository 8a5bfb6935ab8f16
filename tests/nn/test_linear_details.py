"""What trainers ask of a linear loss beside the loss: lse, z-loss, token weights, predictions."""

import pytest

torch = pytest.importorskip("torch")

import uncork.nn as unn  # noqa: E402
import uncork.nn.functional as F  # noqa: E402
from uncork.nn.linear import blocks  # noqa: E402

from .test_linear_losses import FUSED, compiling, gradients, made  # noqa: E402

CLASSES = 23
every_loss = pytest.mark.parametrize("name", FUSED)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK_ELEMENTS", 3 * CLASSES)


def whole(name, x, w, b, target, softcap=None, **how):
    """(losses by row, Ω* by row) from all logits at once."""
    _, unfused, parameters = FUSED[name]
    z = torch.nn.functional.linear(x, w, b)
    if softcap is not None:
        z = softcap * torch.tanh(z / softcap)
    losses = unfused(z, target, reduction="none", **parameters, **how)
    if name == "cross_entropy":
        value = torch.logsumexp(z, -1)
    else:
        first = torch.zeros_like(target)
        value = unfused(z, first, reduction="none", **parameters) + z[:, 0]
    return losses, torch.where(target == -100, 0.0, value)


@every_loss
@pytest.mark.parametrize("softcap", [None, 1.5])
def test_lse_is_that_of_the_logits_and_differentiable(name, softcap):
    fused, _, parameters = FUSED[name]
    x, w, b, target = made()
    got = fused(x, w, target, linear_bias=b, return_lse=True, softcap=softcap, **parameters)
    losses, value = whole(name, x, w, b, target, softcap)
    expected = losses.sum() / (target != -100).sum()
    torch.testing.assert_close(got.loss, expected)
    torch.testing.assert_close(got.lse, value)
    assert got.predicted is None
    mine = 2 * got.loss + 0.1 * got.lse.square().sum()
    truth = 2 * expected + 0.1 * value.square().sum()
    torch.testing.assert_close(gradients(mine, (x, w, b)), gradients(truth, (x, w, b)))


def test_the_lse_alone_may_be_differentiated():
    x, w, b, target = made()
    got = F.linear_cross_entropy(x, w, target, linear_bias=b, return_lse=True)
    _, value = whole("cross_entropy", x, w, b, target)
    torch.testing.assert_close(gradients(got.lse.sum(), (x, w)), gradients(value.sum(), (x, w)))


@every_loss
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_z_loss_adds_the_square_of_lse(name, reduction):
    fused, _, parameters = FUSED[name]
    x, w, b, target = made()
    how = {"label_smoothing": 0.1}
    mine = fused(x, w, target, linear_bias=b, z_loss=0.3, reduction=reduction, **how, **parameters)
    losses, value = whole(name, x, w, b, target, **how)
    truth = losses + 0.3 * value.square()
    if reduction != "none":
        truth = truth.sum()
    if reduction == "mean":
        truth = truth / (target != -100).sum()
    torch.testing.assert_close(mine, truth)
    upstream = torch.rand_like(truth)
    torch.testing.assert_close(
        gradients(mine, (x, w, b), upstream), gradients(truth, (x, w, b), upstream)
    )


@pytest.mark.parametrize("name", ["cross_entropy", "entmax 1.5", "alpha_relu 1.5"])
@pytest.mark.slow
def test_gradients_of_all_of_it_are_derivatives_twice_over(name):
    fused, _, parameters = FUSED[name]
    x, w, b, _ = made(seed=2)
    x, w, b = (leaf.detach()[:5].requires_grad_() for leaf in (x[1:4], w, b))
    target = torch.tensor([4, -100, 3])

    def both(x, w, b):
        got = fused(x, w, target, linear_bias=b, z_loss=0.2, return_lse=True, **parameters)
        return got.loss, got.lse

    torch.autograd.gradcheck(both, (x, w, b))
    torch.autograd.gradgradcheck(both, (x, w, b))


@every_loss
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_token_weights_are_those_of_rows(name, reduction):
    fused, _, parameters = FUSED[name]
    x, w, b, target = made()
    by_row = torch.linspace(0, 2, len(target), dtype=torch.float64)
    class_weight = torch.linspace(0.5, 1, CLASSES, dtype=torch.float64)
    mine = fused(
        x, w, target, linear_bias=b, token_weight=by_row, weight=class_weight,
        reduction=reduction, **parameters,
    )  # fmt: skip
    losses, _ = whole(name, x, w, b, target, weight=class_weight)
    truth = losses * by_row
    if reduction != "none":
        truth = truth.sum()
    if reduction == "mean":
        counted = target != -100
        truth = truth / (class_weight[target[counted]] * by_row[counted]).sum()
    torch.testing.assert_close(mine, truth)
    upstream = torch.rand_like(truth)
    torch.testing.assert_close(
        gradients(mine, (x, w, b), upstream), gradients(truth, (x, w, b), upstream)
    )


def test_token_weights_receive_a_gradient_by_row():
    x, w, _, target = made()
    by_row = torch.rand(len(target), dtype=torch.float64, requires_grad=True)
    losses = F.linear_cross_entropy(x, w, target, token_weight=by_row, reduction="none")
    (slope,) = torch.autograd.grad(losses.sum(), by_row)
    torch.testing.assert_close(slope, F.linear_cross_entropy(x, w, target, reduction="none"))


@every_loss
def test_predictions_are_the_largest_logits(name):
    fused, _, parameters = FUSED[name]
    x, w, b, target = made()
    z = torch.nn.functional.linear(x, w, b)
    target = torch.where(torch.arange(len(target)) < 2, z.argmax(-1), target)
    got = fused(x, w, target, linear_bias=b, return_predictions=True, **parameters)
    assert got.lse is None
    assert torch.equal(got.predicted, z.argmax(-1))
    counted = target != -100
    share = (z.argmax(-1) == target)[counted].float().mean()
    torch.testing.assert_close(got.accuracy, share)
    plain = fused(x, w, target, linear_bias=b, **parameters)
    torch.testing.assert_close(gradients(got.loss, (x, w, b)), gradients(plain, (x, w, b)))


def test_results_have_the_target_s_shape():
    x, w = torch.randn(2, 3, 5), torch.randn(CLASSES, 5)
    got = F.linear_cross_entropy(
        x, w, torch.zeros(2, 3, dtype=torch.long), return_lse=True, return_predictions=True
    )
    assert got.lse.shape == got.predicted.shape == (2, 3)
    assert got.loss.shape == got.accuracy.shape == ()


def test_the_module_takes_z_loss_and_token_weights():
    x, w, b, target = made()
    by_row = torch.rand(len(target), dtype=torch.float64)
    module = unn.LinearEntmaxLoss(alpha=1.5, z_loss=0.1)
    expected = F.linear_entmax_loss(x, w, target, linear_bias=b, z_loss=0.1, token_weight=by_row)
    torch.testing.assert_close(module(x, w, target, b, by_row), expected)


@compiling
@pytest.mark.slow
def test_compiled_results_are_the_same():
    x, w, _, target = made(dtype=torch.float32)
    by_row = torch.rand(len(target))

    def step(x, w):
        got = F.linear_cross_entropy(
            x, w, target, return_lse=True, return_predictions=True, z_loss=0.1,
            token_weight=by_row,
        )  # fmt: skip
        return got.loss + got.lse.square().sum(), got.predicted

    mine, predicted = torch.compile(step, fullgraph=True, backend="aot_eager")(x, w)
    truth, expected = step(x, w)
    torch.testing.assert_close(mine, truth)
    assert torch.equal(predicted, expected)
    torch.testing.assert_close(gradients(mine, (x, w)), gradients(truth, (x, w)))
