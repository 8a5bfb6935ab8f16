"""Losses of high-rank heads a block at a time: those of all logits at once, in torch's own way."""

import pytest

torch = pytest.importorskip("torch")

import uncork.nn as unn  # noqa: E402
from uncork.nn.linear import gated, mixture  # noqa: E402

from .with_kernels import DEVICE, MARKS, kernels_on  # noqa: E402

ROWS, CLASSES, FEATURES = 7, 23, 5
HEADS = {
    "sigsoftmax": {},
    "plif": {"pieces": 9, "bound": 2.0},
    "mos": {"components": 3},
    "mos-sigsoftmax": {"components": 3},
    "mixtape": {"components": 4, "gate_features": 3, "frequent": 6},
}
every_head = pytest.mark.parametrize("name", HEADS)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Several blocks of rows, though the tensors are small."""
    for room in (mixture, gated):
        monkeypatch.setattr(room, "ON_CPU", 6 * CLASSES)
        monkeypatch.setattr(room, "ON_GPU", 6 * CLASSES)


def made(name, dtype=torch.float64, device="cpu"):
    torch.manual_seed(0)
    head = unn.heads.HEADS[name](FEATURES, CLASSES, dtype=dtype, device=device, **HEADS[name])
    with torch.no_grad():
        head.bias.normal_()
        if name == "plif":
            head.slopes.normal_()
    hidden = 3 * torch.randn(ROWS, FEATURES, dtype=dtype)
    target = torch.tensor([3, 22, -100, 0, 13, 14, 3])
    return head, hidden.to(device).requires_grad_(), target.to(device)


def expected(head, hidden, target, **how):
    """From all log-probabilities."""
    return torch.nn.functional.nll_loss(head.log_probabilities(hidden), target, **how)


def slopes(loss, head, hidden, upstream=None):
    return torch.autograd.grad(loss, (hidden, *head.parameters()), upstream)


@every_head
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_loss_is_that_of_the_log_probabilities(name, reduction, weighted):
    head, hidden, target = made(name)
    how = {"reduction": reduction}
    if weighted:
        how["weight"] = torch.linspace(0.5, 2, CLASSES, dtype=torch.float64)
    mine, truth = head.loss(hidden, target, **how), expected(head, hidden, target, **how)
    torch.testing.assert_close(mine, truth)
    up = torch.rand_like(truth)
    torch.testing.assert_close(slopes(mine, head, hidden, up), slopes(truth, head, hidden, up))


@every_head
@pytest.mark.slow
def test_derivatives_are_derivatives_twice_over(name):
    head, hidden, target = made(name)
    hidden = hidden.detach()[:3].requires_grad_()

    def loss(hidden):
        return head.loss(hidden, target[:3])

    torch.autograd.gradcheck(loss, hidden)
    torch.autograd.gradgradcheck(loss, hidden)


@every_head
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_derivatives_to_differentiate_again_are_the_same_with_a_tied_weight(name, smoothing):
    """Hidden states are made from the weight, and a head's tensors from one another."""
    head, mix, target = made(name)

    def slopes_of(loss_of, **how):
        loss = loss_of(torch.tanh(mix @ head.weight[:FEATURES]))
        return torch.autograd.grad(loss, (mix, *head.parameters()), **how)

    def loss(hidden):
        return head.loss(hidden, target, label_smoothing=smoothing)

    def whole(hidden):
        scores = head.log_probabilities(hidden)
        return torch.nn.functional.cross_entropy(scores, target, label_smoothing=smoothing)

    again = slopes_of(loss, create_graph=True)
    torch.testing.assert_close(again, slopes_of(loss))
    leaves = (mix, *head.parameters())
    mine, truth = (
        torch.autograd.grad(sum(slope.square().sum() for slope in made), leaves)
        for made in (again, slopes_of(whole, create_graph=True))
    )
    torch.testing.assert_close(mine, truth)


@every_head
@pytest.mark.parametrize("shift", [-300.0, 300.0])
def test_logits_far_from_zero_do_not_vanish(name, shift):
    head, hidden, target = made(name)
    with torch.no_grad():
        head.bias += shift
    mine, truth = head.loss(hidden, target), expected(head, hidden, target)
    torch.testing.assert_close(mine, truth)
    torch.testing.assert_close(slopes(mine, head, hidden), slopes(truth, head, hidden))


@every_head
def test_masked_classes_have_no_part_in_it(name):
    head, hidden, target = made(name)
    with torch.no_grad():
        head.bias[5] = -torch.inf
    loss = head.loss(hidden, target)
    torch.testing.assert_close(loss, expected(head, hidden, target))
    d_hidden, *others = slopes(loss, head, hidden)
    assert d_hidden.isfinite().all()
    assert all(other.isfinite().all() for other in others)


@every_head
def test_a_second_backward_gives_the_same(name):
    head, hidden, target = made(name)
    loss = head.loss(hidden, target)
    (first,) = torch.autograd.grad(3 * loss, hidden, retain_graph=True)
    kept = first.clone()
    (second,) = torch.autograd.grad(3 * loss, hidden)
    assert torch.equal(first, kept)
    torch.testing.assert_close(first, second)


@every_head
def test_no_tensor_of_all_rows_and_classes_is_made(name):
    from torch.utils._python_dispatch import TorchDispatchMode

    class Largest(TorchDispatchMode):
        most = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            made = function(*args, **(kwargs or {}))
            sizes = [one.numel() for one in torch.utils._pytree.tree_leaves(made)
                     if isinstance(one, torch.Tensor) and CLASSES in one.shape[-1:]]  # fmt: skip
            self.most = max([self.most, *sizes])
            return made

    head, hidden, target = made(name)
    with Largest() as largest:
        head.loss(hidden, target).backward()
    assert largest.most <= 6 * CLASSES


KERNELS = [
    pytest.param(dtype, shift, marks=MARKS)
    for dtype, shift in (
        (torch.float32, 0.0), (torch.bfloat16, 0.0), (torch.float32, 60.0), (torch.float32, -60.0),
    )
]  # fmt: skip


def held_to_float64(name, dtype, shift):
    """Kernels' loss and gradients, of logits far from zero too: there rows are added up relative to
    their largest."""
    head, hidden, target = made(name, dtype, DEVICE)
    with torch.no_grad():
        head.bias += shift
        if name == "plif":
            head.bias[::2] -= shift  # and on pieces
    with kernels_on():
        mine = head.loss(hidden, target)
        got = slopes(mine, head, hidden)
    exact = made(name)[0]
    exact.load_state_dict({key: one.cpu().double() for key, one in head.state_dict().items()})
    wide = hidden.detach().cpu().double().requires_grad_()
    truth = expected(exact, wide, target.cpu())
    tolerance = (2e-6 if dtype == torch.float32 else 2e-2) * (1 + abs(shift) / 8)
    assert abs(float(mine.detach()) - float(truth.detach())) <= tolerance * 10
    for one, other in zip(got, slopes(truth, exact, wide), strict=True):
        error = (one.cpu().double() - other).norm()
        assert error <= 4 * tolerance * other.norm() + 1e-7, float(error / other.norm())


@every_head
@pytest.mark.parametrize(("dtype", "shift"), KERNELS)
@pytest.mark.slow
def test_kernels_equal_their_twin(name, dtype, shift):
    held_to_float64(name, dtype, shift)


@pytest.mark.parametrize(("dtype", "shift"), KERNELS[:2])
def test_more_pieces_than_one_program_takes_equal_their_twin(dtype, shift, monkeypatch):
    from uncork.nn.kernels.links import pieces

    monkeypatch.setattr(pieces, "MOST_PIECES", 1)
    held_to_float64("plif", dtype, shift)


@pytest.mark.parametrize("dtype", [pytest.param(torch.float32, marks=MARKS)])
def test_nan_in_a_row_reaches_a_slope(dtype):
    head, hidden, target = made("plif", dtype, DEVICE)
    hidden = hidden.detach().clone()
    hidden[1, 0] = torch.nan
    with kernels_on():
        loss = head.loss(hidden, target)
        (found,) = torch.autograd.grad(loss, head.slopes)
    assert loss.isnan()
    assert found.isnan().any()
