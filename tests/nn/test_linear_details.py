"""What trainers ask of a linear loss beside the loss: lse, z-loss, token weights, predictions."""

import math

import pytest

torch = pytest.importorskip("torch")

import uncork.nn as unn  # noqa: E402
import uncork.nn.functional as F  # noqa: E402
from uncork import UncorkError  # noqa: E402
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


@every_loss
@pytest.mark.parametrize("weighted_rows", [False, True])
def test_class_weights_leave_the_mean_z_loss_alone(name, weighted_rows):
    fused, _, parameters = FUSED[name]
    x, w, b, target = made()
    how = {"weight": torch.rand(len(w), dtype=x.dtype) + 0.1, "label_smoothing": 0.1}
    rows = torch.ones(len(x), dtype=x.dtype)
    if weighted_rows:
        rows = torch.linspace(0.5, 2, len(x), dtype=x.dtype)
    given = {"linear_bias": b, "token_weight": rows if weighted_rows else None, **parameters}
    mine = fused(x, w, target, z_loss=0.3, **given, **how)
    _, value = whole(name, x, w, b, target)
    mean_square = (rows * value.square()).sum() / rows[target != -100].sum()
    truth = fused(x, w, target, **given, **how) + 0.3 * mean_square
    torch.testing.assert_close(mine, truth)
    torch.testing.assert_close(gradients(mine, (x, w, b)), gradients(truth, (x, w, b)))


def test_class_weights_in_float32_take_nothing_from_a_z_loss_in_float64():
    x, w, b, target = made()
    weight = torch.rand(len(w)) + 0.1
    given = {"linear_bias": b, "z_loss": 0.3}
    mine = F.linear_cross_entropy(x, w, target, weight=weight, **given)
    truth = F.linear_cross_entropy(x, w, target, weight=weight.double(), **given)
    torch.testing.assert_close(mine, truth, rtol=1e-14, atol=0)


def test_class_weights_leave_the_mean_z_loss_alone_at_several_positions():
    x, w, b, target = made()
    layers, bias = torch.stack([w, 2 * w], 1), torch.stack([b, -b], 1)
    targets = torch.stack([target, target.roll(1)], 1)
    weight = torch.rand(len(w), dtype=x.dtype) + 0.1
    mine, plain = (
        F.linear_cross_entropy(x, layers, targets, linear_bias=bias, weight=weight, z_loss=zeta)
        for zeta in (0.3, 0.0)
    )
    lse = torch.logsumexp(torch.einsum("nd,cpd->ncp", x, layers) + bias, 1)
    torch.testing.assert_close(mine - plain, 0.3 * lse[targets != -100].square().mean())


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


@every_loss
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_weight_of_an_ignored_row_counts_nothing_whatever_it_is(name, reduction):
    """An advantage, say, where a prompt has none."""
    fused, _, parameters = FUSED[name]
    x, w, b, target = made()
    of_rows = [torch.where(target == -100, none, 0.5) for none in (0.0, math.inf, math.nan)]
    plain, *others = (
        fused(
            x, w, target, linear_bias=b, token_weight=by_row, reduction=reduction, z_loss=0.1,
            **parameters,
        )
        for by_row in of_rows
    )  # fmt: skip
    slopes = gradients(plain, (x, w, b))
    for other in others:
        torch.testing.assert_close(other, plain)
        torch.testing.assert_close(gradients(other, (x, w, b)), slopes)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ignore_index": 1.5}, "ignore_index must be an integer"),
        ({"target": torch.ones(7, dtype=torch.bool)}, "target must be class indices"),
        ({"z_loss": torch.tensor(0.1, requires_grad=True)}, "z_loss must be"),
        ({"z_loss": None}, "z_loss must be"),
        ({"label_smoothing": torch.tensor(0.1, requires_grad=True)}, "label_smoothing must be"),
        ({"linear_weight": [1.0]}, "linear_weight must be a torch.Tensor"),
        ({"linear_weight": torch.ones(3, 2, 5, dtype=torch.float64), "target": [1]}, "target must"),
    ],
)
def test_what_is_no_number_or_no_class_is_named(change, message):
    x, w, _, target = made()
    with pytest.raises((UncorkError, TypeError), match=message):
        F.linear_cross_entropy(**{"input": x, "linear_weight": w, "target": target, **change})


@every_loss
def test_tensors_without_values_have_losses_without_values(name):
    from torch._subclasses import FakeTensorMode

    fused, _, parameters = FUSED[name]
    with FakeTensorMode():
        x, w = torch.randn(4, 3, requires_grad=True), torch.randn(5, 3, requires_grad=True)
        loss = fused(x, w, torch.zeros(4, dtype=torch.long), **parameters)
        assert torch.autograd.grad(loss, w)[0].shape == (5, 3)


@every_loss
def test_a_batch_without_a_token_that_counts_changes_nothing(name):
    fused, _, parameters = FUSED[name]
    x, w, b, target = made()
    nothing = torch.zeros(len(target))
    for more in ({}, {"z_loss": 0.1, "weight": torch.linspace(0.5, 1, CLASSES)}):
        loss = fused(x, w, target, linear_bias=b, token_weight=nothing, **parameters, **more)
        assert loss == 0
        assert all((slope == 0).all() for slope in torch.autograd.grad(loss, (x, w, b)))


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


@pytest.mark.parametrize("loss", [F.linear_cross_entropy, F.linear_entmax_loss])
def test_of_ignored_targets_lse_is_0_and_the_prediction_is_there(loss):
    x, w = torch.randn(3, 4), torch.randn(5, 4)
    got = loss(x, w, torch.tensor([1, -100, 2]), return_lse=True, return_predictions=True)
    assert (got.lse == 0).tolist() == [False, True, False]
    assert torch.equal(got.predicted, (x @ w.T).argmax(-1))


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


@pytest.mark.parametrize("dense", [False, True])
def test_accuracy_leaves_out_what_token_weights_leave_out(dense):
    """A prompt of weight 0 is in neither the loss nor its accuracy."""
    x, w, b, target = made()
    likely = torch.nn.functional.linear(x, w, b).argmax(-1)
    answer = torch.arange(len(target)) >= 3
    target = torch.where(answer, likely, (likely + 1) % CLASSES)
    target[-1] = (likely[-1] + 1) % CLASSES
    given = torch.nn.functional.one_hot(target, CLASSES).to(x.dtype) if dense else target
    got = F.linear_cross_entropy(
        x, w, given, linear_bias=b, token_weight=answer, return_predictions=True
    )
    assert got.accuracy == (answer.sum() - 1) / answer.sum()
