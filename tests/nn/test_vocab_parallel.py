"""A weight shared out among processes gives the loss and gradients of the whole one."""

import pytest

torch = pytest.importorskip("torch")

import uncork.nn.functional as F  # noqa: E402
from uncork import UncorkError  # noqa: E402
from uncork.nn.linear import vocab_parallel  # noqa: E402

from .process_groups import in_processes, needs_gloo  # noqa: E402

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available(), reason="needs torch.distributed"
)
SHARDS = (14, 9)  # uneven
OPTIONS = {
    "plain": {},
    "none": {"reduction": "none"},
    "z-loss": {"z_loss": 0.2, "token_weight": torch.linspace(0.5, 2, 7, dtype=torch.float64)},
    "everything": {"label_smoothing": 0.1, "softcap": 4.0, "weight": True, "ignore_index": 3},
}
LOSSES = {
    "softmax": (F.linear_cross_entropy, {}),
    "sparsemax": (F.linear_sparsemax_loss, {}),
    "entmax": (F.linear_entmax_loss, {"alpha": 1.3}),
    "entmax, steep": (F.linear_entmax_loss, {"alpha": 3.0}),
    "alpha_relu": (F.linear_alpha_relu_loss, {"alpha": 1.5, "tau": 0.2}),
}


def made():
    g = torch.Generator().manual_seed(0)
    x = torch.randn(7, 5, generator=g, dtype=torch.float64)
    w = torch.randn(sum(SHARDS), 5, generator=g, dtype=torch.float64)
    b = torch.randn(sum(SHARDS), generator=g, dtype=torch.float64)
    target = torch.tensor([3, 22, -100, 0, 13, 14, 3])
    return x, w, b, target, torch.rand(sum(SHARDS), generator=g, dtype=torch.float64)


def options_of(name, class_weight, target):
    options = dict(OPTIONS[name])
    if options.get("weight"):
        options["weight"] = class_weight
        target = torch.where(target == -100, torch.full_like(target, 3), target)
    return options, target


def work(rank):
    """One process: every loss and option, compared with the unsharded ones."""
    vocab_parallel.BLOCK_ELEMENTS = 3 * sum(SHARDS)  # several blocks
    x, w, b, target, class_weight = made()
    mine = slice(0, SHARDS[0]) if rank == 0 else slice(SHARDS[0], None)
    try:
        for name, (whole, parameters) in LOSSES.items():
            for option in OPTIONS:
                options, labels = options_of(option, class_weight, target)
                leaves = [leaf.clone().requires_grad_() for leaf in (x, w, b)]
                expected = whole(
                    leaves[0], leaves[1], labels, linear_bias=leaves[2], **parameters, **options
                )
                upstream = torch.arange(1.0, 8.0) if expected.dim() else torch.tensor(3.0)
                truth = torch.autograd.grad(expected, leaves, upstream.double())
                own = [
                    leaf.clone().requires_grad_() for leaf in (x, w[mine].clone(), b[mine].clone())
                ]
                got = vocab_parallel.vocab_parallel_loss(
                    name.split(",")[0],
                    own[0],
                    own[1],
                    labels,
                    linear_bias=own[2],
                    **parameters,
                    **options,
                )
                gradients = torch.autograd.grad(got, own, upstream.double())
                torch.testing.assert_close(got, expected)
                torch.testing.assert_close(gradients, (truth[0], truth[1][mine], truth[2][mine]))
        for check in (
            beside, by_row, autocast, learned_tau, compiled, padded, ruled_out, not_a_number,
            all_logits_at_once, ignored,
        ):  # fmt: skip
            name, option = check.__name__, "plain"
            check(x, w, mine, target)
    except Exception as error:
        raise AssertionError(f"{name}, {option}") from error


def beside(x, w, mine, target):
    """lse, differentiable, and predictions."""
    options = {"return_lse": True, "return_predictions": True}
    for name, (whole, parameters) in LOSSES.items():
        leaves = [x.clone().requires_grad_(), w.clone().requires_grad_()]
        expected = whole(*leaves, target, **parameters, **options)
        truth = torch.autograd.grad(expected.loss + expected.lse.square().sum(), leaves)
        own = [x.clone().requires_grad_(), w[mine].clone().requires_grad_()]
        got = vocab_parallel.vocab_parallel_loss(
            name.split(",")[0], *own, target, **parameters, **options
        )
        torch.testing.assert_close(got, expected)
        gradients = torch.autograd.grad(got.loss + got.lse.square().sum(), own)
        torch.testing.assert_close(gradients, (truth[0], truth[1][mine]))


def by_row(x, w, mine, target):
    """Log-probabilities, entropies and distillation."""
    g = torch.Generator().manual_seed(1)
    teacher = torch.randn(7, len(w), generator=g, dtype=w.dtype)
    values, classes = teacher.topk(3)
    head = torch.randn(len(w), 4, generator=g, dtype=w.dtype)
    hidden = torch.randn(7, 4, generator=g, dtype=w.dtype)
    likely = torch.where(target == -100, target, (x @ w.T).argmax(-1))
    world = {"group": torch.distributed.group.WORLD}

    def policy(x, w, alpha, mine=None):
        more = {} if mine is None else world
        got = F.linear_log_prob(x, w, likely, alpha=alpha, return_entropy=True, **more)
        return got.log_prob.sum() + 2 * got.entropy.square().sum()

    def likelihood(x, w, mine=None):
        return F.linear_log_prob(x, w, likely, **({} if mine is None else world)).sum()

    def student(x, w, how, divergence, mine=slice(None)):
        given = {
            "logits": {"teacher": teacher[:, mine]},
            "hidden": {"teacher": hidden, "teacher_weight": head[mine]},
            "top k": {"teacher": values, "teacher_classes": classes},
        }[how]
        more = {} if mine == slice(None) else world
        return F.linear_distillation_loss(x, w, **given, divergence=divergence, **more)

    cases = [(likelihood,)] + [(policy, alpha) for alpha in (1.0, 1.5, 3.0, 5.0)]
    cases += [(student, how, "jsd") for how in ("logits", "hidden", "top k")]
    cases += [(student, "logits", "kl"), (student, "hidden", "reverse_kl")]
    for function, *given in cases:
        leaves = [x.clone().requires_grad_(), w.clone().requires_grad_()]
        expected = function(*leaves, *given)
        truth = torch.autograd.grad(expected, leaves)
        own = [x.clone().requires_grad_(), w[mine].clone().requires_grad_()]
        got = function(*own, *given, mine=mine)
        torch.testing.assert_close(got, expected)
        torch.testing.assert_close(torch.autograd.grad(got, own), (truth[0], truth[1][mine]))


def autocast(x, w, mine, target):
    """Hidden states of a 16-bit body, and a weight in float32."""
    with torch.autocast("cpu", torch.bfloat16):
        own = vocab_parallel.vocab_parallel_loss("entmax", x.bfloat16(), w[mine].float(), target)
        whole = F.linear_entmax_loss(x.bfloat16(), w.float(), target)
    torch.testing.assert_close(own, whole)


def learned_tau(x, w, mine, target):
    slopes = []
    for _ in range(2):
        tau = torch.full((1, 1, 1), 0.2, requires_grad=True)
        if not slopes:
            loss = F.linear_alpha_relu_loss(x, w, target, tau=tau)
        else:
            loss = vocab_parallel.vocab_parallel_loss("alpha_relu", x, w[mine], target, tau=tau)
        slopes.append(*torch.autograd.grad(loss, tau))
    torch.testing.assert_close(*slopes)


def compiled(x, w, mine, target):
    """Called as it is, between two graphs."""

    @torch.compile(backend="eager")
    def loss(x, w):
        return 2 * vocab_parallel.vocab_parallel_loss("sparsemax", x / 2, w, target)

    torch.testing.assert_close(loss(x, w[mine]), 2 * F.linear_sparsemax_loss(x / 2, w, target))


def padded(x, w, mine, target):
    """One process has nothing but classes ruled out, and all logits lie below 0."""
    bias = torch.full((len(w),), -9.0, dtype=w.dtype)
    bias[SHARDS[0] :] = -torch.inf
    target = target.clamp(max=SHARDS[0] - 1)
    for alpha in (1.0, 1.5, 2.0, 3.0):
        own = vocab_parallel.vocab_parallel_loss(
            "entmax", x, w[mine], target, alpha=alpha, linear_bias=bias[mine]
        )
        whole = F.linear_entmax_loss(x, w, target, alpha=alpha, linear_bias=bias)
        torch.testing.assert_close(own, whole)


def ruled_out(x, w, mine, target):
    """No class is left, or one is not a number."""
    for value, classes in ((-torch.inf, slice(None)), (torch.nan, 5), (torch.nan, SHARDS[0] + 3)):
        bias = torch.zeros(len(w), dtype=w.dtype)
        bias[classes] = value
        for name, (whole, parameters) in LOSSES.items():
            options = {"reduction": "none", **parameters}
            expected = whole(x, w, target, linear_bias=bias, **options)
            own = vocab_parallel.vocab_parallel_loss(
                name.split(",")[0], x, w[mine], target, linear_bias=bias[mine], **options
            )
            torch.testing.assert_close(own, expected, equal_nan=True)


def not_a_number(x, w, mine, target):
    """One process's logit that is not a number is in every log-probability."""
    target = target.clamp(min=0)
    for value in (torch.nan, torch.inf):
        for place in (5, SHARDS[0] + 3):
            bias = torch.zeros(len(w), dtype=w.dtype)
            bias[place] = value
            for alpha in (1.0, 1.25, 2.0, 3.0):
                got = F.linear_log_prob(
                    x, w[mine], target, alpha=alpha, linear_bias=bias[mine], return_entropy=True,
                    group=torch.distributed.group.WORLD,
                )  # fmt: skip
                assert got.log_prob.isnan().all(), (value, place, alpha)
                assert got.entropy.isnan().all(), (value, place, alpha)


def all_logits_at_once(x, w, mine, target):
    """Nobody has them."""
    own = w[mine].clone().requires_grad_()
    for loss in (
        lambda w: vocab_parallel.vocab_parallel_loss("entmax", x, w, target),
        lambda w: F.linear_log_prob(
            x, w, target, alpha=1.5, group=torch.distributed.group.WORLD
        ).exp().sum(),
    ):  # fmt: skip
        value = loss(own)
        with pytest.raises(UncorkError, match="first derivatives only"):
            torch.autograd.grad(value, own, create_graph=True)
        with pytest.raises(UncorkError, match="first derivatives only"):
            torch.func.grad(loss)(own)


def ignored(x, w, mine, target):
    own = w[mine].clone().requires_grad_()
    loss = vocab_parallel.vocab_parallel_loss("entmax", x, own, torch.full_like(target, -100))
    assert loss.isnan()
    assert (torch.autograd.grad(loss, own)[0] == 0).all()


@needs_gloo
def test_two_processes_agree_with_one(tmp_path):
    in_processes(work, tmp_path)


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ({"first_class": 2}, "given together"),
        ({"classes": 9}, "given together"),
        ({"first_class": -1, "classes": 9}, "do not fit"),
        ({"first_class": 5, "classes": 9}, "do not fit"),
    ],
)
def test_a_place_that_cannot_be_is_refused(place, message):
    x, w, target = torch.ones(2, 3), torch.ones(5, 3), torch.zeros(2, dtype=torch.long)
    with pytest.raises(UncorkError, match=message):
        vocab_parallel.vocab_parallel_loss("softmax", x, w, target, **place)


def test_an_unknown_loss_is_named():
    with pytest.raises(ValueError, match="must be one of"):
        vocab_parallel.vocab_parallel_loss("hinge", *made()[:2], made()[3])
