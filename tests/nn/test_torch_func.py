"""torch.func and forward mode through what is computed in blocks: linear losses and heads."""

import pytest

torch = pytest.importorskip("torch")

from torch.autograd.functional import jacobian  # noqa: E402
from torch.func import (  # noqa: E402
    functional_call,
    grad,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    vmap,
)
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

import uncork.nn as unn  # noqa: E402
import uncork.nn.functional as F  # noqa: E402

ROWS, FEATURES, CLASSES = 6, 4, 9
LOSSES = {
    "cross_entropy": F.linear_cross_entropy,
    "sparsemax": F.linear_sparsemax_loss,
    "entmax": F.linear_entmax_loss,
    "alpha_relu": lambda *given, **options: F.linear_alpha_relu_loss(*given, tau=0.1, **options),
    "normmax": F.linear_normmax_loss,
}
# torch's own forward mode uses what torch deprecates for others.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
every_loss = pytest.mark.parametrize("name", LOSSES)


def drawn(*shape):
    return torch.randn(
        shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape))
    )


X, W, B = drawn(ROWS, FEATURES), drawn(CLASSES, FEATURES), drawn(CLASSES)
TARGET = torch.tensor([3, 0, -100, 5, 1, 8])


def by_autograd(function, *leaves):
    leaves = [leaf.detach().clone().requires_grad_() for leaf in leaves]
    return torch.autograd.grad(function(*leaves), leaves)


@every_loss
def test_grad_and_jvp_are_autograds(name):
    def loss(x, w, b):
        made = LOSSES[name](
            x, w, TARGET, linear_bias=b, z_loss=0.1, label_smoothing=0.1, softcap=5.0,
            token_weight=torch.linspace(0.5, 1, ROWS), return_lse=True, return_predictions=True,
        )  # fmt: skip
        return made.loss + made.lse.square().sum()

    expected = by_autograd(loss, X, W, B)
    torch.testing.assert_close(grad(loss, (0, 1, 2))(X, W, B), expected)
    along = tuple(drawn(1, *leaf.shape)[0] for leaf in (X, W, B))
    value, slope = jvp(loss, (X, W, B), along)
    torch.testing.assert_close(value, loss(X, W, B))
    torch.testing.assert_close(
        slope, sum((one * other).sum() for one, other in zip(expected, along, strict=True))
    )


@every_loss
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_gradients_of_every_row_alone(name, reduction):
    def loss(w, x, target):
        return LOSSES[name](x[None], w, target[None], linear_bias=B, reduction=reduction)

    kept = TARGET.clamp(min=0)  # the mean of an ignored row alone is NaN
    rows = vmap(grad(loss), (None, 0, 0))(W, X, kept)
    for row, x, target in zip(rows, X, kept, strict=True):
        torch.testing.assert_close(row, by_autograd(lambda w: loss(w, x, target), W)[0])  # noqa: B023


@every_loss
@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_many_gradients_at_once_are_each_by_itself(name, reduction):
    def losses(x, w, b):
        made = LOSSES[name](
            x, w, TARGET, linear_bias=b, reduction=reduction, z_loss=0.1, softcap=5.0,
            return_lse=True,
        )  # fmt: skip
        return made.loss + made.lse

    given = (X, W, B)
    torch.testing.assert_close(jacobian(losses, given, vectorize=True), jacobian(losses, given))
    w = W.clone().requires_grad_()
    plain = LOSSES[name](X, w, TARGET, reduction=reduction)
    way = torch.eye(plain.numel(), dtype=W.dtype).reshape(-1, *plain.shape)
    (slopes,) = torch.autograd.grad(plain, w, way, is_grads_batched=True)
    assert not slopes.requires_grad
    expected = jacobian(lambda w: LOSSES[name](X, w, TARGET, reduction=reduction), W)
    torch.testing.assert_close(slopes, expected.reshape(-1, *W.shape))


def test_a_hessian_is_that_of_the_loss_of_logits():
    plain = torch.nn.functional.cross_entropy
    torch.testing.assert_close(
        hessian(lambda w: F.linear_cross_entropy(X, w, TARGET))(W),
        hessian(lambda w: plain(X @ w.T, TARGET))(W),
    )


@every_loss
@pytest.mark.parametrize("mode", ["real", "symbolic"])
def test_a_trace_of_a_linear_loss_holds_for_other_rows(name, mode):
    def loss(x, w, target):
        return LOSSES[name](x, w, target, reduction="mean", label_smoothing=0.1)

    gradient = make_fx(grad(loss), tracing_mode=mode)(X, W, TARGET)
    others = X.flip(0) + 1, 2 * W, TARGET.roll(1)
    torch.testing.assert_close(gradient(*others), grad(loss)(*others))


def test_targets_out_of_bounds_are_still_refused_under_grad():
    with pytest.raises(IndexError, match="target 9 is out of bounds"):
        grad(lambda w: F.linear_entmax_loss(X, w, torch.full((ROWS,), 9)))(W)


class Loss(torch.nn.Module):
    def __init__(self, head):
        super().__init__()
        self.head = head

    def forward(self, hidden, target):
        return self.head.loss(hidden, target, label_smoothing=0.1)


@pytest.mark.parametrize("kind", unn.heads.HEADS)
def test_heads_are_trained_by_functional_calls(kind):
    mixes = kind in ("mos", "mos-sigsoftmax", "moc")
    torch.manual_seed(0)
    head = unn.heads.HEADS[kind](FEATURES, CLASSES, **({"components": 2} if mixes else {}))
    model = Loss(head).double()
    parameters = {name: value.detach() for name, value in model.named_parameters()}

    def loss(parameters, x, target):
        return functional_call(model, parameters, (x, target))

    expected = torch.autograd.grad(model(X, TARGET), list(model.parameters()))
    torch.testing.assert_close(tuple(grad(loss)(parameters, X, TARGET).values()), expected)
    rows = vmap(grad(loss), (None, 0, 0))(parameters, X[:2, None], TARGET[:2, None])
    first = torch.autograd.grad(model(X[:1], TARGET[:1]), list(model.parameters()))
    torch.testing.assert_close(tuple(row[0] for row in rows.values()), first)


@pytest.mark.parametrize("reduction", ["none", "mean"])
@pytest.mark.parametrize("kind", unn.heads.HEADS)
def test_gradients_of_heads_in_a_batch_equal_one_after_the_other(kind, reduction):
    torch.manual_seed(0)
    head = unn.heads.HEADS[kind](FEATURES, CLASSES).double()

    def loss(x):
        made = head.loss(x, TARGET, reduction=reduction)
        return torch.stack([made.sum(), made.sin().sum()])

    torch.testing.assert_close(jacobian(loss, X, vectorize=True), jacobian(loss, X))


@pytest.mark.parametrize("kind", unn.heads.HEADS)
def test_a_trace_of_a_heads_loss_holds_for_other_rows(kind):
    torch.manual_seed(0)
    head = unn.heads.HEADS[kind](FEATURES, CLASSES).double()

    def loss(x, target):
        return head.loss(x, target)

    others = X.flip(0) + 1, TARGET.roll(1)
    gradient = make_fx(grad(loss))(X, TARGET)
    torch.testing.assert_close(gradient(*others), grad(loss)(*others))


TEACHER, LOGITS = drawn(ROWS, 3), drawn(ROWS, CLASSES)
BEST = LOGITS.topk(3)
OF_ROWS = {
    "log p": lambda x, w: F.linear_log_prob(x, w, TARGET),
    "log p and entropy": lambda x, w: sum(
        F.linear_log_prob(x, w, TARGET, linear_bias=B, return_entropy=True, temperature=0.7)
    ),
    "sparse policy": lambda x, w: sum(  # probabilities, since log p may be −inf
        one.exp() for one in F.linear_log_prob(x, w, TARGET, return_entropy=True, alpha=1.5)
    ),
    "near 1": lambda x, w: F.linear_log_prob(x, w, TARGET, alpha=1.1, softcap=4.0).exp(),
    **{
        f"{divergence}, {how}": lambda x, w, divergence=divergence, given=given: (
            F.linear_distillation_loss(
                x, w, **given, divergence=divergence, beta=0.3, temperature=1.7, reduction="none"
            )
        )
        for divergence in ("kl", "reverse_kl", "jsd")
        for how, given in {
            "logits": {"teacher": LOGITS},
            "its own head": {"teacher": TEACHER, "teacher_weight": drawn(CLASSES, 3)},
            "top k": {"teacher": BEST.values, "teacher_classes": BEST.indices},
        }.items()
        if (divergence, how) != ("reverse_kl", "top k")
    },
}
of_rows = pytest.mark.parametrize("values", OF_ROWS.values(), ids=OF_ROWS)


@of_rows
def test_values_of_rows_have_derivatives_of_every_mode(values):
    expected = jacobian(values, (X, W))
    for batched in (jacobian(values, (X, W), vectorize=True), jacrev(values, (0, 1))(X, W)):
        torch.testing.assert_close(batched, expected)
    torch.testing.assert_close(jacfwd(values, (0, 1))(X, W), expected)
    along = drawn(1, CLASSES, FEATURES)[0]
    value, slope = jvp(lambda w: values(X, w), (W,), (along,))
    torch.testing.assert_close(value, values(X, W))
    torch.testing.assert_close(slope, (expected[1] * along).sum((-1, -2)))


@of_rows
def test_values_of_rows_have_second_derivatives(values):
    weight = (torch.randn(3, FEATURES, dtype=torch.float64) + W[:3]).requires_grad_()

    def total(w):
        return values(X, torch.cat([w, W[3:]])).square().sum()

    assert torch.autograd.gradgradcheck(total, weight)
    torch.testing.assert_close(
        hessian(total)(weight), torch.autograd.functional.hessian(total, weight)
    )


@of_rows
def test_a_trace_of_values_of_rows_holds_for_others(values):
    traced = make_fx(grad(lambda x, w: values(x, w).sum(), (0, 1)))(X, W)
    others = X.flip(0) + 1, 2 * W
    torch.testing.assert_close(traced(*others), jacobian(lambda *a: values(*a).sum(), others))


def test_a_batch_of_teachers():
    def loss(w, teacher, head):
        return F.linear_distillation_loss(X, w, teacher, teacher_weight=head, divergence="jsd")

    teachers, heads = drawn(2, ROWS, 3), drawn(2, CLASSES, 3)
    many = vmap(grad(loss), (None, 0, 0))(W, teachers, heads)
    for slope, teacher, head in zip(many, teachers, heads, strict=True):
        torch.testing.assert_close(slope, jacobian(lambda w: loss(w, teacher, head), W))  # noqa: B023
    torch.testing.assert_close(
        vmap(loss, (None, None, 0))(W, teachers[0], heads),
        torch.stack([loss(W, teachers[0], head) for head in heads]),
    )


def test_a_batch_of_top_k_teachers():
    def loss(x, w, values):
        return F.linear_distillation_loss(x, w, values, teacher_classes=BEST.indices)

    values = torch.stack([BEST.values, BEST.values.flip(1)])
    torch.testing.assert_close(
        vmap(loss, (None, None, 0))(X, W, values), torch.stack([loss(X, W, one) for one in values])
    )
    weights = torch.stack([W, 2 * W])
    torch.testing.assert_close(
        vmap(grad(loss, 1), (None, 0, None))(X, weights, BEST.values),
        torch.stack([jacobian(lambda w: loss(X, w, BEST.values), one) for one in weights]),
    )
