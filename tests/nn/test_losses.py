"""The losses: gradient p − e_y of the value itself, and cross_entropy's treatment of everything."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import uncork.nn as unn  # noqa: E402
import uncork.nn.functional as F  # noqa: E402
from uncork.nn import reference  # noqa: E402

MAPS = {
    "softmax": (F.softmax_loss, lambda z: torch.softmax(z, -1)),
    "sparsemax": (F.sparsemax_loss, F.sparsemax),
    "entmax 1": (lambda z, y, **o: F.entmax_loss(z, y, alpha=1.0, **o), lambda z: z.softmax(-1)),
    "entmax 1.2": (
        lambda z, y, **o: F.entmax_loss(z, y, alpha=1.2, **o),
        lambda z: F.entmax(z, 1.2),
    ),
    "entmax 1.5": (F.entmax_loss, F.entmax),
    "entmax 3": (lambda z, y, **o: F.entmax_loss(z, y, alpha=3.0, **o), lambda z: F.entmax(z, 3.0)),
    "alpha_relu": (
        lambda z, y, **o: F.alpha_relu_loss(z, y, tau=0.2, **o),
        lambda z: F.alpha_relu(z, 1.5, 0.2),
    ),
    "alpha_relu 1.8": (
        lambda z, y, **o: F.alpha_relu_loss(z, y, alpha=1.8, tau=-0.3, **o),
        lambda z: F.alpha_relu(z, 1.8, -0.3),
    ),
    "normmax": (F.normmax_loss, F.normmax),
}


@pytest.fixture
def z():
    return torch.randn(6, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.fixture
def y():
    return torch.tensor([0, 4, 2, 2, 1, 3])


@pytest.mark.parametrize("name", MAPS)
def test_lemma_1_the_gradient_of_the_value_is_p_minus_the_target(name, z, y):
    """By central differences of the value, and by backward."""
    loss, predict = MAPS[name]
    expected = predict(z) - torch.nn.functional.one_hot(y, 5)
    step = 1e-6
    for row in range(len(z)):
        for c in range(5):
            move = torch.zeros_like(z)
            move[row, c] = step
            rise = loss(z + move, y, reduction="sum") - loss(z - move, y, reduction="sum")
            assert float(rise / (2 * step)) == pytest.approx(float(expected[row, c]), abs=2e-6)
    z.requires_grad_()
    loss(z, y, reduction="sum").backward()
    torch.testing.assert_close(z.grad, expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("name", MAPS)
def test_losses_are_differentiable_twice(name, z, y):
    loss, _ = MAPS[name]
    y[1] = -100
    z.requires_grad_()
    for options in ({}, {"label_smoothing": 0.1, "reduction": "none"}):
        assert torch.autograd.gradcheck(lambda z, o=options: loss(z, y, **o), z, atol=1e-5)
        assert torch.autograd.gradgradcheck(lambda z, o=options: loss(z, y, **o), z, atol=1e-5)


@pytest.mark.parametrize("alpha", [1.0, 1.0001, 1.3, 1.5, 2.0, 2.5])
def test_alpha_and_tau_receive_gradients(alpha, z, y):
    z.requires_grad_()
    rows = torch.full((6,), alpha, dtype=torch.float64).requires_grad_()
    single = torch.tensor(alpha, dtype=torch.float64, requires_grad=True)
    for a in (rows, single):

        def value(z, a):
            return F.entmax_loss(z, y, alpha=a, reduction="none")

        assert torch.autograd.gradcheck(value, (z, a), atol=1e-5)
        assert torch.autograd.gradgradcheck(value, (z, a), atol=1e-5)
    if alpha > 1.1:
        tau = torch.tensor(0.13, dtype=torch.float64, requires_grad=True)

        def relu_value(z, a, t):
            return F.alpha_relu_loss(z, y, alpha=a, tau=t, reduction="none")

        assert torch.autograd.gradcheck(relu_value, (z, single, tau), atol=1e-5)
        assert torch.autograd.gradgradcheck(relu_value, (z, single, tau), atol=1e-5)


def test_values_equal_the_definition(z, y):
    for alpha in (1.0, 1.2, 1.5, 2.0, 3.0):
        ours = F.entmax_loss(z, y, alpha=alpha, reduction="none")
        pairs = zip(z.numpy(), y.tolist(), strict=True)
        expected = [reference.fenchel_young_loss(row, t, alpha) for row, t in pairs]
        np.testing.assert_allclose(ours.numpy(), expected, atol=1e-12)
        if alpha > 1:
            ours = F.alpha_relu_loss(z, y, alpha=alpha, tau=0.3, reduction="none")
            pairs = zip(z.numpy(), y.tolist(), strict=True)
            expected = [reference.alpha_relu_loss(row, t, alpha, 0.3) for row, t in pairs]
            np.testing.assert_allclose(ours.numpy(), expected, atol=1e-12)


def test_the_published_alpha_relu_loss_does_not_match_its_gradient(z, y):
    """With Σ(p − p^α) for the entropy, differences of the value are not p − e_y."""

    def published(z):
        p = F.alpha_relu(z, 1.5, 0.2)
        one_hot = torch.nn.functional.one_hot(y, 5)
        return ((p - one_hot) * z + (p - p**1.5) / 0.75).sum()

    slope = torch.autograd.functional.jacobian(published, z)
    residual = F.alpha_relu(z, 1.5, 0.2) - torch.nn.functional.one_hot(y, 5)
    assert (slope - residual).abs().max() > 0.1


SHAPES = [
    ((7,), ()),
    ((6, 7), (6,)),
    ((3, 7, 4), (3, 4)),
    ((2, 7, 3, 2), (2, 3, 2)),
]


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("smoothing", [0.0, 0.15])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("shape", "target_shape"), SHAPES)
@pytest.mark.parametrize("kind", ["index", "ignored", "probabilities"])
def test_softmax_loss_is_cross_entropy_in_every_option(
    kind, shape, target_shape, weighted, smoothing, reduction
):
    generator = torch.Generator().manual_seed(1)
    z = torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True)
    if kind == "probabilities":
        target = torch.rand(shape, generator=generator, dtype=torch.float64)
        target = target / target.sum(0 if len(shape) == 1 else 1, keepdim=True)
    else:
        target = torch.randint(7, target_shape, generator=generator)
        if kind == "ignored" and target_shape:
            target.view(-1)[::2] = -100
    options = {"reduction": reduction, "label_smoothing": smoothing}
    if weighted:
        options["weight"] = torch.rand(7, generator=generator, dtype=torch.float64)
    ours = F.softmax_loss(z, target, **options)
    torchs = torch.nn.functional.cross_entropy(z, target, **options)
    torch.testing.assert_close(ours, torchs)
    (dz,) = torch.autograd.grad(ours.sum(), z)
    (expected,) = torch.autograd.grad(torchs.sum(), z)
    torch.testing.assert_close(dz, expected)


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("weighted", [False, True])
def test_a_soft_target_is_the_mixture_of_the_losses_of_its_classes(name, weighted, z):
    loss, predict = MAPS[name]
    weight = torch.tensor([0.5, 1.0, 2.0, 0.0, 1.5]).double() if weighted else None
    target = torch.softmax(z.flip(0), -1)
    each = torch.stack([loss(z, torch.full((6,), c), reduction="none") for c in range(5)], 1)
    mixed = target if weight is None else target * weight
    torch.testing.assert_close(
        loss(z, target, reduction="none", weight=weight), (mixed * each).sum(1)
    )
    if weight is None:
        z.requires_grad_()
        loss(z, target, reduction="sum").backward()
        torch.testing.assert_close(z.grad, predict(z) - target, atol=1e-12, rtol=0)


@pytest.mark.parametrize("name", MAPS)
def test_label_smoothing_is_the_smoothed_soft_target(name, z, y):
    loss, _ = MAPS[name]
    weight = torch.tensor([0.5, 1.0, 2.0, 0.3, 1.5]).double()
    smoothed = torch.nn.functional.one_hot(y, 5) * 0.8 + 0.2 / 5
    for w in (None, weight):
        torch.testing.assert_close(
            loss(z, y, label_smoothing=0.2, weight=w, reduction="none"),
            loss(z, smoothed, weight=w, reduction="none"),
        )


def test_a_soft_target_may_itself_receive_a_gradient(z):
    target = torch.softmax(z.flip(0), -1).requires_grad_()
    each = torch.stack(
        [F.entmax_loss(z, torch.full((6,), c), reduction="none") for c in range(5)], 1
    )
    (gradient,) = torch.autograd.grad(F.entmax_loss(z, target, reduction="sum"), target)
    torch.testing.assert_close(gradient, each)
    z.requires_grad_()
    assert torch.autograd.gradcheck(lambda z, t: F.entmax_loss(z, t), (z, target), atol=1e-5)


@pytest.mark.parametrize("name", MAPS)
def test_a_target_of_zero_has_its_gradient_too(name, z):
    loss, _ = MAPS[name]
    target = torch.eye(6, 5, dtype=torch.float64).requires_grad_()
    each = torch.stack([loss(z, torch.full((6,), c), reduction="none") for c in range(5)], 1)
    (gradient,) = torch.autograd.grad(loss(z, target, reduction="sum"), target)
    torch.testing.assert_close(gradient, each)


@pytest.mark.parametrize("name", MAPS)
def test_a_target_that_is_ruled_out_costs_infinitely_much_smoothed_or_not(name, z, y):
    loss, _ = MAPS[name]
    z = z.scatter(1, y[:, None], -torch.inf).requires_grad_()
    for smoothing in (0.0, 0.1):
        value = loss(z, y, label_smoothing=smoothing, reduction="none")
        assert (value == torch.inf).all()
    (gradient,) = torch.autograd.grad(value.sum(), z)
    assert gradient.isfinite().all()


@pytest.mark.parametrize("name", MAPS)
def test_ignored_rows_count_nothing(name, z, y):
    loss, _ = MAPS[name]
    y[[1, 4]] = -100
    z[1] = -torch.inf  # not even if the row has no logits
    z.requires_grad_()
    value = loss(z, y)
    kept = [0, 2, 3, 5]
    torch.testing.assert_close(value, loss(z[kept], y[kept]))
    value.backward()
    assert (z.grad[[1, 4]] == 0).all()
    torch.testing.assert_close(
        loss(z, y % 100, ignore_index=0), loss(z[[0, 2, 3, 5]], y[kept], ignore_index=0)
    )


def test_all_rows_ignored_is_nan_for_the_mean_and_zero_for_the_sum_as_in_torch(z):
    y = torch.full((6,), -100)
    for loss, _ in MAPS.values():
        assert loss(z, y).isnan()
        assert loss(z, y, reduction="sum") == 0


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"reduction": "average"}, "reduction must be"),
        ({"label_smoothing": 1.5}, "label_smoothing must be between"),
        ({"weight": torch.ones(3)}, "weight must have one value per class"),
        ({"target": torch.zeros(5, dtype=torch.long)}, "class indices as target must have shape"),
        ({"target": torch.zeros(6, 4)}, "probabilities as target must have"),
        ({"target": torch.zeros(6, 5).double(), "ignore_index": 0}, "not supported for floating"),
        ({"alpha": torch.ones(4)}, "does not broadcast to one value per row"),
    ],
)
def test_a_bad_argument_is_named(options, says, z, y):
    options = {"target": y, **options}
    with pytest.raises(ValueError, match=says):
        F.entmax_loss(z, **options)


def test_a_class_out_of_range_is_named(z, y):
    y[3] = 5
    with pytest.raises(IndexError, match="target 5 is out of bounds for 5 classes"):
        F.entmax_loss(z, y)


def test_modules_are_the_functions(z, y):
    weight = torch.rand(5).double()
    options = {"weight": weight, "ignore_index": 2, "reduction": "sum", "label_smoothing": 0.1}
    pairs = [
        (unn.SparsemaxLoss(**options), F.sparsemax_loss(z, y, **options)),
        (unn.EntmaxLoss(1.3, **options), F.entmax_loss(z, y, alpha=1.3, **options)),
        (unn.NormmaxLoss(3.0, **options), F.normmax_loss(z, y, alpha=3.0, **options)),
        (
            unn.AlphaReLULoss(1.5, 0.25, **options),
            F.alpha_relu_loss(z, y, alpha=1.5, tau=0.25, **options),
        ),
    ]
    for module, expected in pairs:
        torch.testing.assert_close(module(z, y), expected)


def test_values_and_gradients_agree_with_the_entmax_package(z, y):
    peer = pytest.importorskip("entmax")
    pairs = [
        (F.sparsemax_loss, peer.SparsemaxLoss(reduction="sum")),
        (F.entmax_loss, peer.Entmax15Loss(reduction="sum")),
        (
            lambda z, y, **o: F.entmax_loss(z, y, alpha=1.3, **o),
            peer.EntmaxBisectLoss(alpha=1.3, reduction="sum"),
        ),
        (F.normmax_loss, peer.NormmaxBisectLoss(alpha=2, reduction="sum")),
    ]
    for ours, theirs in pairs:
        a, b = z.clone().requires_grad_(), z.clone().requires_grad_()
        mine, other = ours(a, y, reduction="sum"), theirs(b, y)
        torch.testing.assert_close(mine, other, atol=1e-12, rtol=1e-10)
        mine.backward()
        other.backward()
        torch.testing.assert_close(a.grad, b.grad, atol=1e-10, rtol=1e-8)
