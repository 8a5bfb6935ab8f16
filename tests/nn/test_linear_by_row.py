"""Log-probabilities, entropies and distillation from hidden states: as from all logits at once."""

import math

import pytest

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import uncork.nn.functional as F  # noqa: E402
from uncork import UncorkError  # noqa: E402
from uncork.nn.linear import blocks, by_row  # noqa: E402

ROWS, CLASSES, FEATURES, WIDE = 7, 23, 5, 9
alphas = pytest.mark.parametrize("alpha", [1.0, 1.3, 1.5, 2.0, 3.0])
DIVERGENCES = ["kl", "reverse_kl", "jsd"]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Several blocks of rows, though the tensors are small."""
    monkeypatch.setattr(by_row, "ON_CPU", 3 * CLASSES)
    monkeypatch.setattr(blocks, "BLOCK_ELEMENTS", 3 * CLASSES)


def made(seed=0, dtype=torch.float64):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(ROWS, FEATURES, generator=g, dtype=torch.float64)
    w = torch.randn(CLASSES, FEATURES, generator=g, dtype=torch.float64)
    b = torch.randn(CLASSES, generator=g, dtype=torch.float64)
    target = (x @ w.T + b).topk(2).indices[:, 1]  # likely ones: most are on the support
    target[2] = -100
    return (*(leaf.to(dtype).requires_grad_() for leaf in (x, w, b)), target)


def logits(x, w, b, softcap=None, temperature=1.0):
    z = torch.nn.functional.linear(x, w, b)
    return (z if softcap is None else softcap * torch.tanh(z / softcap)) / temperature


def log_probs(z, target, alpha):
    """(log p_target, entropy), 0 where ignored."""
    if alpha == 1:
        log_p = torch.log_softmax(z, -1)
        entropy = -(log_p.exp() * log_p).sum(-1)
    else:
        p = F.entmax(z, alpha)
        log_p = torch.where(p > 0, p, 1.0).log()
        entropy = -(p * log_p).sum(-1)
        log_p = torch.where(p > 0, log_p, -math.inf)
    counted = target != -100
    own = log_p.gather(-1, target.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    return torch.where(counted, own, 0.0), torch.where(counted, entropy, 0.0)


def finite(values):
    """The sum of what is not −inf."""
    return torch.where(values.isfinite(), values, 0.0)


@alphas
@pytest.mark.parametrize("options", [{}, {"softcap": 2.0, "temperature": 0.7}])
@pytest.mark.parametrize("entropy", [False, True])
def test_log_probabilities_and_entropies_are_those_of_the_logits(alpha, options, entropy):
    x, w, b, target = made()
    got = F.linear_log_prob(
        x, w, target, alpha=alpha, linear_bias=b, return_entropy=entropy, **options
    )
    expected = log_probs(logits(x, w, b, **options), target, alpha)
    got, expected = (got, expected) if entropy else ((got,), expected[:1])
    torch.testing.assert_close(tuple(got), expected)
    up = torch.linspace(-1, 2, ROWS, dtype=torch.float64)
    mine = sum((finite(value) * (up + k)).sum() for k, value in enumerate(got))
    truth = sum((finite(value) * (up + k)).sum() for k, value in enumerate(expected))
    torch.testing.assert_close(
        torch.autograd.grad(mine, (x, w, b)), torch.autograd.grad(truth, (x, w, b))
    )


@alphas
@pytest.mark.slow
def test_gradients_are_derivatives(alpha):
    x, w, b, target = made(seed=1)
    leaves = [leaf.detach()[:6].requires_grad_() for leaf in (x[:3], w, b)]
    target = logits(*leaves).argmax(-1)
    target[1] = -100

    def both(x, w, b):
        return F.linear_log_prob(
            x, w, target, alpha=alpha, linear_bias=b, return_entropy=True, temperature=1.3
        )

    torch.autograd.gradcheck(both, leaves)


def test_a_target_off_the_support_has_no_gradient():
    x, w, b, _ = made()
    target = logits(x, w, b).argmin(-1)
    got = F.linear_log_prob(x, w, target, alpha=2.0)
    assert (got == -math.inf).all()
    (slope,) = torch.autograd.grad(got.exp().sum(), x)
    assert (slope == 0).all()


@pytest.mark.parametrize(("alpha", "below"), [(1.02, 42.5), (1.05, 19.82), (1.1, 9.999)])
def test_a_target_of_nearly_no_probability_has_a_finite_gradient(alpha, below):
    """p is below 1e-39, and 1/p infinite in float32."""
    target, slopes = torch.tensor([1, 1]), []
    for dtype in (torch.float32, torch.float64):
        x = torch.tensor([[0.0, -below], [0.0, -1.0]]).to(dtype).requires_grad_()
        w = torch.eye(2, dtype=dtype, requires_grad=True)
        got = F.linear_log_prob(x, w, target, alpha=alpha)
        assert -100 < got[0] < -90
        slopes.append([slope.double() for slope in torch.autograd.grad(got.sum(), (x, w))])
    torch.testing.assert_close(*slopes, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("alpha", [1.001, 1.01, 1.1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_target_whose_probability_is_too_small_for_its_type_has_its_logarithm(alpha, dtype):
    """As log_entmax has it: −inf is for classes off the support."""
    x, w, b, _ = made(dtype=dtype)
    x = (12 * x.detach()).requires_grad_()
    target = logits(x, w, b).argmin(-1)
    mine = F.linear_log_prob(x, w, target, linear_bias=b, alpha=alpha)
    whole = F.log_entmax(logits(x, w, b), alpha).gather(-1, target.unsqueeze(-1)).squeeze(-1)
    if alpha == 1.001:
        assert (whole < math.log(torch.finfo(torch.float32).smallest_normal)).any()
    torch.testing.assert_close(mine, whole)
    torch.testing.assert_close(
        torch.autograd.grad(finite(mine).sum(), (x, w, b)),
        torch.autograd.grad(finite(whole).sum(), (x, w, b)),
    )


@pytest.mark.parametrize("alpha", [3.0, 4.0, 5.0, 8.0])
def test_gradients_of_steep_log_probabilities_keep_float32_s_figures(alpha):
    """dp/dz of the least probable class, large beside all others, is not their difference."""
    z = torch.randn(60, CLASSES, generator=torch.Generator().manual_seed(0))
    target = torch.multinomial(F.entmax(z, alpha), 1).squeeze(-1)

    def slopes(dtype, through):
        given = z.to(dtype).requires_grad_()
        log_prob, entropy = through(given, torch.eye(CLASSES, dtype=dtype))
        return [torch.autograd.grad(one.sum(), given, retain_graph=True)[0].double()
                for one in (log_prob, entropy)]  # fmt: skip

    def fused(given, w):
        return F.linear_log_prob(given, w, target, alpha=alpha, return_entropy=True)

    def whole(given, w):
        return log_probs(given @ w.T, target, alpha)

    for got, truth in zip(slopes(torch.float32, fused), slopes(torch.float64, whole), strict=True):
        error = (got - truth).norm(dim=-1) / truth.norm(dim=-1).clamp(min=1e-3)
        assert error.max() < 2e-4  # of one row at α = 5 it was 1.7
        assert (got.sum(-1).abs() <= 1e-6 * got.abs().amax(-1) + 1e-5).all()


def test_shapes_are_the_target_s():
    x, w = torch.randn(2, 3, 4), torch.randn(11, 4)
    got = F.linear_log_prob(x, w, torch.zeros(2, 3, dtype=torch.long), return_entropy=True)
    assert got.log_prob.shape == got.entropy.shape == (2, 3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sums_are_float32_for_narrower_types(dtype):
    x, w, b, target = made(dtype=dtype)
    got = F.linear_log_prob(x, w, target, linear_bias=b, return_entropy=True)
    assert got.log_prob.dtype == torch.float32
    wide = [leaf.detach().double() for leaf in (x, w, b)]
    expected = log_probs(logits(*wide), target, 1.0)
    tolerance = 1e-5 if dtype == torch.float32 else 3e-2
    for mine, truth in zip(got, expected, strict=True):
        torch.testing.assert_close(mine.double(), truth, atol=tolerance, rtol=tolerance)
    slopes = torch.autograd.grad(got.log_prob.sum(), (x, w, b))
    assert [slope.dtype for slope in slopes] == [dtype] * 3


# --- distillation -------------------------------------------------------------------------


def teacher(how, seed=5):
    """(its arguments, its logits)."""
    g = torch.Generator().manual_seed(seed)
    if how == "hidden states":
        h = torch.randn(ROWS, WIDE, generator=g, dtype=torch.float64)
        v = torch.randn(CLASSES, WIDE, generator=g, dtype=torch.float64)
        c = torch.randn(CLASSES, generator=g, dtype=torch.float64)
        given = {"teacher": h, "teacher_weight": v, "teacher_bias": c, "teacher_softcap": 3.0}
        return given, logits(h, v, c, 3.0)
    z = torch.randn(ROWS, CLASSES, generator=g, dtype=torch.float64)
    if how == "logits":
        return {"teacher": z}, z
    values, classes = z.topk(4)
    full = torch.full_like(z, -math.inf).scatter(1, classes, values)
    return {"teacher": values, "teacher_classes": classes}, full


def divergences(z, u, divergence, beta=0.5):
    """From both logits, already divided by the temperature."""
    p, t = torch.softmax(z, -1), torch.softmax(u, -1)
    log_p = torch.log_softmax(z, -1)
    log_t = torch.where(t > 0, t, 1.0).log()
    if divergence == "kl":
        return (t * (log_t - log_p)).sum(-1)
    if divergence == "reverse_kl":
        return (p * (log_p - log_t)).sum(-1)
    log_m = (beta * t + (1 - beta) * p).log()
    first, second = (t * (log_t - log_m)).sum(-1), (p * (log_p - log_m)).sum(-1)
    return beta * first + (1 - beta) * second


@pytest.mark.parametrize(
    ("divergence", "how"),
    [(d, how) for d in DIVERGENCES for how in ("logits", "hidden states")]
    + [("kl", "top k"), ("jsd", "top k")],
)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_divergences_are_those_of_the_logits(divergence, how, reduction):
    x, w, b, _ = made()
    given, u = teacher(how)
    by_token = torch.linspace(0, 2, ROWS, dtype=torch.float64)
    mine = F.linear_distillation_loss(
        x, w, **given, divergence=divergence, beta=0.3, temperature=1.7, linear_bias=b,
        softcap=4.0, token_weight=by_token, reduction=reduction,
    )  # fmt: skip
    truth = by_token * divergences(logits(x, w, b, 4.0, 1.7), u / 1.7, divergence, 0.3)
    if reduction != "none":
        truth = truth.sum()
    if reduction == "mean":
        truth = truth / by_token.sum()
    torch.testing.assert_close(mine, truth)
    up = torch.rand_like(truth)
    torch.testing.assert_close(
        torch.autograd.grad(mine, (x, w, b), up), torch.autograd.grad(truth, (x, w, b), up)
    )


@pytest.mark.parametrize("how", ["logits", "hidden states", "top k"])
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_a_teacher_may_come_from_inference_mode(how, reduction):
    x, w, _, _ = made()
    given = {**teacher(how)[0], "token_weight": torch.linspace(0, 1, ROWS).double()}
    with torch.inference_mode():
        inferred = {
            name: value.clone() if torch.is_tensor(value) else value
            for name, value in given.items()
        }
    for twice in (False, True):
        got, truth = (
            F.linear_distillation_loss(x, w, **one, reduction=reduction).sum()
            for one in (inferred, given)
        )
        torch.testing.assert_close(
            torch.autograd.grad(got, (x, w), create_graph=twice),
            torch.autograd.grad(truth, (x, w), create_graph=twice),
        )


class LargestStorage(TorchDispatchMode):
    """Notes the most bytes that a tensor made by an operation has of its own; views have none."""

    largest = 0

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        result = function(*arguments, **(keywords or {}))
        given = [one.untyped_storage().data_ptr() for one in arguments if torch.is_tensor(one)]
        for value in result if isinstance(result, tuple | list) else (result,):
            if torch.is_tensor(value) and value.untyped_storage().data_ptr() not in given:
                self.largest = max(self.largest, value.untyped_storage().nbytes())
        return result


@pytest.mark.parametrize("options", [{}, {"temperature": 0.7}, {"return_entropy": True}])
def test_tokens_may_have_been_sampled_in_inference_mode(options):
    x, w, _, target = made()
    with torch.inference_mode():
        sampled = target.clone()
    found, expected = (F.linear_log_prob(x, w, one, **options) for one in (sampled, target))
    slopes = []
    for value in (found, expected):
        value = sum(value) if options.get("return_entropy") else value
        slopes.append(torch.autograd.grad(value.sum(), (x, w)))
    torch.testing.assert_close(slopes[0], slopes[1])


@pytest.mark.parametrize("divergence", DIVERGENCES)
def test_a_teacher_s_logits_are_not_copied_where_some_positions_are_left_out(divergence):
    """One place on, as those of the next token are taken."""
    g = torch.Generator().manual_seed(3)
    x = torch.randn(3, ROWS, FEATURES, generator=g, requires_grad=True)
    w = torch.randn(CLASSES, FEATURES, generator=g, requires_grad=True)
    u = torch.randn(3, ROWS, CLASSES, generator=g)
    how = {"divergence": divergence, "reduction": "sum"}
    with LargestStorage() as seen:
        mine = F.linear_distillation_loss(x[:, :-1], w, u[:, :-1], **how)
        slopes = torch.autograd.grad(mine, (x, w))
    assert seen.largest <= 4 * max(x.numel(), w.numel(), 3 * CLASSES)
    truth = sum(
        F.linear_distillation_loss(x[text, :-1], w, u[text, :-1], **how) for text in range(3)
    )
    torch.testing.assert_close(mine, truth)
    torch.testing.assert_close(slopes, torch.autograd.grad(truth, (x, w)))


@pytest.mark.parametrize("divergence", DIVERGENCES)
@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.slow
def test_gradients_of_divergences_are_derivatives(divergence, reduction):
    x, w, b, _ = made(seed=1)
    given, _ = teacher("logits")
    given["teacher"] = given["teacher"][:3, :6]
    leaves = [leaf.detach()[:6].requires_grad_() for leaf in (x[:3], w, b)]

    def loss(x, w, b):
        return F.linear_distillation_loss(
            x, w, **given, linear_bias=b, divergence=divergence, reduction=reduction
        )

    torch.autograd.gradcheck(loss, leaves)


def test_a_student_that_is_the_teacher_has_nothing_to_learn():
    x, w, b, _ = made()
    for divergence in DIVERGENCES:
        loss = F.linear_distillation_loss(
            x, w, x, teacher_weight=w, teacher_bias=b, linear_bias=b, divergence=divergence
        )
        torch.testing.assert_close(loss, torch.zeros_like(loss))
        slopes = torch.autograd.grad(loss, (x, w))
        torch.testing.assert_close(slopes, tuple(torch.zeros_like(slope) for slope in slopes))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"divergence": "hinge"}, "divergence must be"),
        ({"divergence": "jsd", "beta": 1.0}, "'kl' and 'reverse_kl'"),
        ({"divergence": "jsd", "beta": 0.0}, "'kl' and 'reverse_kl'"),
        ({"teacher_bias": torch.zeros(CLASSES)}, "teacher_bias goes with teacher_weight"),
        ({"token_weight": torch.ones(ROWS, requires_grad=True)}, "detached"),
        ({"linear_weight": torch.zeros(0, FEATURES, dtype=torch.float64)}, "linear_weight must be"),
        ({"first_class": 3}, "given together"),
        ({"temperature": 0.0}, "temperature"),
        ({"reduction": "most"}, "reduction"),
        ({"teacher": torch.zeros(ROWS, 3, dtype=torch.float64)}, "teacher must have shape"),
        ({"teacher_weight": torch.zeros(CLASSES, 3, dtype=torch.float64)}, "do not fit"),
        ({"teacher_classes": torch.zeros(ROWS, CLASSES)}, "must be class indices"),
        ({"teacher_softcap": torch.ones(2)}, "teacher_softcap must be"),
        ({"temperature": torch.ones(2)}, "temperature must be"),
        ({"divergence": "jsd", "beta": torch.tensor(0.5, requires_grad=True)}, "beta must be"),
        ({"linear_weight": torch.tensor(1.0, dtype=torch.float64)}, "linear_weight must be"),
    ],
)
def test_what_is_wrong_with_a_distillation_is_named(change, message):
    x, w, _, _ = made()
    given = {"linear_weight": w, "teacher": teacher("logits")[1], **change}
    with pytest.raises(UncorkError, match=message):
        F.linear_distillation_loss(x, **given)


def test_a_teacher_of_k_classes_has_no_reverse_divergence():
    x, w, _, _ = made()
    with pytest.raises(UncorkError, match="infinite"):
        F.linear_distillation_loss(x, w, **teacher("top k")[0], divergence="reverse_kl")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"target": torch.zeros(3, dtype=torch.long)}, "target must be"),
        ({"alpha": 0.5}, "alpha"),
        ({"alpha": torch.tensor(1.5, requires_grad=True)}, "alpha must be a number"),
        ({"first_class": 3}, "given together"),
        ({"temperature": -1.0}, "temperature"),
        ({"classes": CLASSES + 3}, "given together"),
        ({"first_class": 1, "classes": CLASSES}, "do not fit"),
        ({"first_class": -1, "classes": CLASSES}, "do not fit"),
        ({"temperature": torch.tensor(2.0, requires_grad=True)}, "temperature must be"),
        ({"temperature": torch.ones(ROWS)}, "temperature must be"),
        ({"softcap": torch.tensor(2.0, requires_grad=True)}, "softcap must be"),
        ({"target": torch.ones(ROWS, dtype=torch.bool)}, "target must be class indices"),
        ({"target": torch.ones(ROWS, dtype=torch.complex64)}, "target must be class indices"),
        ({"linear_bias": torch.zeros(CLASSES, dtype=torch.complex64)}, "linear_bias must be real"),
        ({"ignore_index": 1.5}, "ignore_index must be an integer"),
        ({"linear_bias": torch.zeros(2)}, "linear_bias"),
        ({"linear_weight": torch.zeros(CLASSES, 2)}, "do not fit"),
        ({"linear_weight": torch.zeros(CLASSES, FEATURES)}, "one dtype"),
    ],
)
def test_what_is_wrong_with_a_log_probability_is_named(change, message):
    x, w, _, target = made()
    given = {"linear_weight": w, "target": target, **change}
    with pytest.raises(UncorkError, match=message):
        F.linear_log_prob(x, **given)


def test_no_class_to_ignore_is_the_default():
    x, w, _, target = made()
    got = F.linear_log_prob(x, w, target, ignore_index=None, return_entropy=True)
    torch.testing.assert_close(got, F.linear_log_prob(x, w, target, return_entropy=True))


def test_a_target_out_of_bounds_is_an_index_error():
    x, w, _, target = made()
    with pytest.raises(IndexError, match="out of bounds"):
        F.linear_log_prob(x, w, target + CLASSES, alpha=1.5)


def test_a_teacher_s_classes_out_of_bounds_are_an_index_error():
    x, w, _, _ = made()
    given, _ = teacher("top k")
    for wrong in (-1, CLASSES):
        given["teacher_classes"][3, 1] = wrong
        with pytest.raises(IndexError, match=f"teacher_classes {wrong} is out of bounds"):
            F.linear_distillation_loss(x, w, **given)


@pytest.mark.parametrize("divergence", ["kl", "jsd"])
@pytest.mark.parametrize("softcap", [None, 3.0])
def test_a_row_of_fewer_classes_is_filled_up_with_logits_of_minus_infinity(divergence, softcap):
    x, w, _, _ = made()
    values, classes = teacher("logits")[1].topk(3)
    blank = torch.full_like(values, -math.inf)
    # Of classes that are there already: they must keep the logits that they have.
    filled = torch.cat([values, blank], 1), torch.cat([classes, classes], 1)
    how = {"divergence": divergence, "teacher_softcap": softcap}
    expected = F.linear_distillation_loss(x, w, values, teacher_classes=classes, **how)
    got = F.linear_distillation_loss(x, w, filled[0], teacher_classes=filled[1], **how)
    torch.testing.assert_close(got, expected, rtol=0, atol=0)
    torch.testing.assert_close(
        torch.autograd.grad(got, (x, w)), torch.autograd.grad(expected, (x, w)), rtol=0, atol=0
    )


@pytest.mark.parametrize("divergence", DIVERGENCES)
def test_a_row_without_a_teacher_teaches_nothing(divergence):
    x, w, _, _ = made()
    u = teacher("logits")[1]
    u[3] = -math.inf
    losses = F.linear_distillation_loss(x, w, u, divergence=divergence, reduction="none")
    (slope,) = torch.autograd.grad(losses.sum(), x)
    assert losses[3] == 0
    assert (slope[3] == 0).all()
    assert slope.isfinite().all()
    assert (slope[4] != 0).any()


@pytest.mark.parametrize("below", [1e3, math.inf])
def test_a_class_that_only_the_teacher_has_leaves_a_jsd_its_second_derivatives(below):
    x, w, b, _ = made()
    u, has = teacher("logits")[1], torch.arange(len(w)) != 2
    out = torch.where(has, b.detach(), -below)
    loss = F.linear_distillation_loss(x, w, u, linear_bias=out, divergence="jsd")
    (slope,) = torch.autograd.grad(loss, x, create_graph=True)
    (found,) = torch.autograd.grad(slope.square().sum(), x)
    assert found.isfinite().all()
    log_p, log_t = logits(x, w[has], b[has]).log_softmax(-1), u.log_softmax(-1)
    p, t = log_p.exp(), log_t.exp()
    log_m = ((p + t[:, has]) / 2).log()
    of_t = (t[:, has] * (log_t[:, has] - log_m)).sum(-1) + t[:, 2] * math.log(2)
    truth = (of_t + (p * (log_p - log_m)).sum(-1)).mean() / 2
    torch.testing.assert_close(loss, truth)
    (slope,) = torch.autograd.grad(truth, x, create_graph=True)
    torch.testing.assert_close(found, torch.autograd.grad(slope.square().sum(), x)[0])


@pytest.mark.parametrize("divergence", DIVERGENCES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_student_that_is_the_teacher_has_a_loss_of_exactly_0(divergence, dtype):
    x, w, _, _ = made(dtype=dtype)
    for beta in (0.1, 0.5, 0.9):
        losses = F.linear_distillation_loss(
            x, w, x, teacher_weight=w, divergence=divergence, beta=beta, reduction="none"
        )
        assert (losses == 0).all()
        assert all((slope == 0).all() for slope in torch.autograd.grad(losses.sum(), (x, w)))


@pytest.mark.parametrize("beta", [0.02, 0.5, 0.98])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 100.0])
def test_a_jsd_in_float32_is_near_that_in_float64(beta, scale):
    x, w, _, _ = made()
    u = logits(x, w, None).detach() + scale * teacher("logits")[1]
    how = {"divergence": "jsd", "beta": beta, "reduction": "none"}
    truth = F.linear_distillation_loss(x, w, u, **how)
    got = F.linear_distillation_loss(x.float(), w.float(), u.float(), **how)
    torch.testing.assert_close(got.double(), truth, rtol=1e-5, atol=1e-7)


EVERY_FORM = [
    lambda x, w, target: F.linear_log_prob(x, w, target, return_entropy=True).entropy.sum(),
    lambda x, w, target: F.linear_log_prob(x, w, target, alpha=1.5).exp().sum(),
    lambda x, w, target: F.linear_distillation_loss(x, w, teacher("logits")[1]),
    lambda x, w, target: F.linear_distillation_loss(
        x, w, teacher("logits")[1], reduction="none"
    ).sum(),
]


@pytest.mark.parametrize("function", EVERY_FORM)
def test_without_gradients_none_are_made(function, monkeypatch):
    x, w, _, target = made()
    expected = function(x, w, target)
    monkeypatch.setattr(by_row, "add_product", None)  # what a weight's gradient takes
    with torch.no_grad():
        torch.testing.assert_close(function(x, w, target), expected.detach())


@pytest.mark.parametrize("divergence", DIVERGENCES)
def test_a_mean_over_no_rows_is_nan_with_gradients_of_0(divergence):
    x, w, _, _ = made()
    loss = F.linear_distillation_loss(x[:0], w, teacher("logits")[1][:0], divergence=divergence)
    assert loss.isnan()
    assert (torch.autograd.grad(loss, w)[0] == 0).all()
