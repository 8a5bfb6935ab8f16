"""A linear layer and its loss in one: the same numbers as one after the other, in less memory."""

import pytest

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import uncork.nn as unn  # noqa: E402
import uncork.nn.functional as F  # noqa: E402
from uncork import UncorkError  # noqa: E402
from uncork.nn.linear import blocks  # noqa: E402

ROWS, CLASSES, FEATURES = 7, 23, 5

FUSED = {
    "cross_entropy": (F.linear_cross_entropy, torch.nn.functional.cross_entropy, {}),
    "sparsemax": (F.linear_sparsemax_loss, F.sparsemax_loss, {}),
    "entmax 1.5": (F.linear_entmax_loss, F.entmax_loss, {"alpha": 1.5}),
    "entmax 1.3": (F.linear_entmax_loss, F.entmax_loss, {"alpha": 1.3}),
    "entmax 3": (F.linear_entmax_loss, F.entmax_loss, {"alpha": 3.0}),
    "alpha_relu 1.5": (F.linear_alpha_relu_loss, F.alpha_relu_loss, {"alpha": 1.5, "tau": 0.2}),
    "alpha_relu 1.2": (F.linear_alpha_relu_loss, F.alpha_relu_loss, {"alpha": 1.2, "tau": -0.1}),
}
every_loss = pytest.mark.parametrize("name", FUSED)
OPTIONS = {
    "plain": {},
    "sum": {"reduction": "sum"},
    "none": {"reduction": "none"},
    "smoothed": {"label_smoothing": 0.1},
    "weighted": {"weight": True, "label_smoothing": 0.2},
    "weighted none": {"weight": True, "reduction": "none", "ignore_index": 3},
}
# torch's own tracing uses what torch deprecates for others.
compiling = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Several blocks of rows, though the tensors are small."""
    monkeypatch.setattr(blocks, "BLOCK_ELEMENTS", 3 * CLASSES)


def made(seed=0, dtype=torch.float64, bias=True):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(ROWS, FEATURES, generator=g, dtype=torch.float64)
    w = torch.randn(CLASSES, FEATURES, generator=g, dtype=torch.float64)
    b = torch.randn(CLASSES, generator=g, dtype=torch.float64) if bias else None
    target = torch.randint(0, CLASSES, (ROWS,), generator=g)
    target[2], target[4] = -100, 3
    leaves = [None if t is None else t.to(dtype).requires_grad_() for t in (x, w, b)]
    return (*leaves, target)


def options_of(name, dtype=torch.float64):
    options = dict(OPTIONS[name])
    if options.get("weight"):
        generator = torch.Generator().manual_seed(9)
        options["weight"] = torch.rand(CLASSES, generator=generator, dtype=dtype)
    if "ignore_index" in options:
        options["ignore_index"] = 3
    return options


def target_for(options, target):
    if options.get("ignore_index", -100) == 3:
        return torch.where(target == -100, torch.full_like(target, 3), target)
    return target


def gradients(loss, leaves, upstream=None):
    return torch.autograd.grad(loss, [leaf for leaf in leaves if leaf is not None], upstream)


@every_loss
@pytest.mark.parametrize("option", OPTIONS)
def test_equals_the_layer_and_the_loss_one_after_the_other(name, option):
    fused, unfused, parameters = FUSED[name]
    options = options_of(option)
    x, w, b, target = made()
    target = target_for(options, target)
    got = fused(x, w, target, linear_bias=b, **parameters, **options)
    expected = unfused(torch.nn.functional.linear(x, w, b), target, **parameters, **options)
    upstream = torch.randn_like(expected)
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(
        gradients(got, (x, w, b), upstream), gradients(expected, (x, w, b), upstream)
    )


@every_loss
def test_a_soft_cap_is_applied_to_the_logits(name):
    fused, unfused, parameters = FUSED[name]
    x, w, b, target = made()
    got = fused(x, w, target, linear_bias=b, softcap=1.5, **parameters)
    z = 1.5 * torch.tanh(torch.nn.functional.linear(x, w, b) / 1.5)
    expected = unfused(z, target, **parameters)
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(gradients(got, (x, w, b)), gradients(expected, (x, w, b)))


@every_loss
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_gradients_are_derivatives_of_the_value_twice_over(name, reduction):
    fused, _, parameters = FUSED[name]
    x, w, b, target = made(seed=2)
    x, w, b = (leaf.detach()[:6].requires_grad_() for leaf in (x[1:4], w, b))
    target = torch.tensor([4, -100, 3])

    def loss(x, w, b):
        return fused(x, w, target, linear_bias=b, reduction=reduction, **parameters)

    torch.autograd.gradcheck(loss, (x, w, b))
    torch.autograd.gradgradcheck(loss, (x, w, b))


@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (1, 1, 1)])
def test_tau_receives_its_gradient(shape):
    x, w, b, target = made()
    tau = torch.full(shape, 0.3, dtype=torch.float64, requires_grad=True)
    got = F.linear_alpha_relu_loss(x, w, target, tau=tau, linear_bias=b)
    plain = tau.detach().reshape(()).requires_grad_()
    expected = F.alpha_relu_loss(torch.nn.functional.linear(x, w, b), target, tau=plain)
    (mine,) = torch.autograd.grad(got, tau, create_graph=True)
    assert mine.shape == shape
    torch.testing.assert_close([mine.reshape(())], list(gradients(expected, [plain])))


@every_loss
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_shapes_are_known_without_numbers(name, dtype):
    fused, _, parameters = FUSED[name]
    there = {"device": "meta", "dtype": dtype, "requires_grad": True}
    x, w = torch.empty(ROWS, FEATURES, **there), torch.empty(CLASSES, FEATURES, **there)
    loss = fused(x, w, torch.zeros(ROWS, dtype=torch.long, device="meta"), **parameters)
    loss.backward()
    assert loss.shape == ()
    assert (x.grad.shape, w.grad.shape) == (x.shape, w.shape)


@every_loss
def test_a_second_backward_gives_the_same_and_leaves_the_first_alone(name):
    fused, _, parameters = FUSED[name]
    x, w, b, target = made()
    loss = fused(x, w, target, linear_bias=b, **parameters)
    first = torch.autograd.grad(3 * loss, (x, w, b), retain_graph=True)
    kept = [gradient.clone() for gradient in first]
    second = torch.autograd.grad(2 * loss, (x, w, b))
    torch.testing.assert_close(list(first), kept)
    torch.testing.assert_close([g * 2 / 3 for g in first], list(second))


@every_loss
def test_one_weight_serves_two_losses(name):
    fused, unfused, parameters = FUSED[name]
    x, w, _, target = made(bias=False)
    y = torch.randn(4, FEATURES, dtype=torch.float64, requires_grad=True)
    got = fused(x, w, target, **parameters) + 2 * fused(y, w, target[:4], **parameters)
    expected = unfused(x @ w.T, target, **parameters) + 2 * unfused(
        y @ w.T, target[:4], **parameters
    )
    torch.testing.assert_close(gradients(got, (x, y, w)), gradients(expected, (x, y, w)))


@every_loss
def test_agrees_under_checkpointing(name):
    fused, _, parameters = FUSED[name]
    x, w, b, target = made()

    def loss(x, w, b):
        return fused(x.tanh(), w, target, linear_bias=b, **parameters)

    checkpointed = torch.utils.checkpoint.checkpoint(loss, x, w, b, use_reentrant=False)
    torch.testing.assert_close(
        gradients(checkpointed, (x, w, b)), gradients(loss(x, w, b), (x, w, b))
    )


@every_loss
@pytest.mark.parametrize("reduction", ["mean", "none"])
@compiling
def test_compiles_as_one_graph(name, reduction):
    fused, _, parameters = FUSED[name]
    x, w, b, target = made()

    def loss(x, w, b):
        return fused(x, w, target, linear_bias=b, reduction=reduction, **parameters).sum()

    torch._dynamo.reset()
    traced = torch.compile(loss, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(traced(x, w, b), loss(x, w, b))
    torch.testing.assert_close(
        gradients(traced(x, w, b), (x, w, b)), gradients(loss(x, w, b), (x, w, b))
    )


@every_loss
def test_autocast_multiplies_in_bfloat16_and_returns_float32(name):
    fused, unfused, parameters = FUSED[name]
    x, w, b, target = made(dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = fused(x, w, target, linear_bias=b, **parameters)
    z = torch.nn.functional.linear(x.bfloat16(), w.bfloat16()).float() + b
    expected = unfused(z, target, **parameters)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
    for mine, theirs in zip(gradients(got, (x, w, b)), gradients(expected, (x, w, b)), strict=True):
        assert mine.dtype == torch.float32
        torch.testing.assert_close(mine, theirs, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@every_loss
def test_sixteen_bit_gradients_are_as_good_as_unfused_ones(name, dtype):
    """Judged by the error of torch's own way in the same type, against float64."""
    fused, unfused, parameters = FUSED[name]
    x, w, _, target = made(dtype=dtype, bias=False)
    exact_x, exact_w = (leaf.detach().double().requires_grad_() for leaf in (x, w))
    exact = gradients(unfused(exact_x @ exact_w.T, target, **parameters), (exact_x, exact_w))
    theirs = gradients(unfused(x @ w.T, target, **parameters).float(), (x, w))
    for scale in (1.0, 1024.0):  # as a gradient scaler would
        got = gradients(scale * fused(x, w, target, **parameters), (x, w))
        for mine, other, truth in zip(got, theirs, exact, strict=True):
            error = (mine.double() / scale - truth).norm()
            assert error <= 2 * (other.double() - truth).norm() + 1e-3 * truth.norm()


class LargestTensor(TorchDispatchMode):
    """Notes the most elements of any tensor that an operation returns."""

    largest = 0

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        result = function(*arguments, **(keywords or {}))
        for value in result if isinstance(result, tuple | list) else (result,):
            if isinstance(value, torch.Tensor):
                self.largest = max(self.largest, value.numel())
        return result


@every_loss
def test_no_tensor_of_rows_times_classes_ever_exists(name):
    fused, _, parameters = FUSED[name]
    x = torch.randn(64, 4, requires_grad=True)
    w = torch.randn(CLASSES, 4, requires_grad=True)
    target = torch.randint(0, CLASSES, (64,))
    with LargestTensor() as seen:
        fused(x, w, target, **parameters).backward()
    assert seen.largest <= 64 * 4


@every_loss
def test_the_hidden_states_gradient_can_be_left_out(name):
    fused, _, parameters = FUSED[name]
    x, w, b, target = made()
    fused(x, w, target, linear_bias=b, input_grad=False, **parameters).backward()
    assert x.grad is None
    expected = gradients(fused(x, w, target, linear_bias=b, **parameters), (w, b))
    torch.testing.assert_close((w.grad, b.grad), expected)


def test_any_leading_shape_and_an_empty_batch():
    w = torch.randn(CLASSES, FEATURES, requires_grad=True)
    x = torch.randn(2, 3, FEATURES)
    target = torch.randint(0, CLASSES, (2, 3))
    rows = F.linear_entmax_loss(x, w, target, reduction="none")
    assert rows.shape == (2, 3)
    torch.testing.assert_close(
        rows, F.entmax_loss((x @ w.T).movedim(-1, 1), target, reduction="none")
    )
    empty = F.linear_entmax_loss(x[:0], w, target[:0], reduction="sum")
    assert empty == 0
    assert (torch.autograd.grad(empty, w)[0] == 0).all()
    mean = F.linear_entmax_loss(x[:0], w, target[:0])
    assert mean.isnan()  # as cross_entropy of no rows
    assert (torch.autograd.grad(mean, w)[0] == 0).all()


def test_modules_call_their_functions():
    x, w, b, target = made(dtype=torch.float32)
    pairs = [
        (unn.LinearCrossEntropyLoss(label_smoothing=0.1), F.linear_cross_entropy, {}),
        (unn.LinearSparsemaxLoss(label_smoothing=0.1), F.linear_sparsemax_loss, {}),
        (unn.LinearEntmaxLoss(1.3, label_smoothing=0.1), F.linear_entmax_loss, {"alpha": 1.3}),
        (
            unn.LinearAlphaReLULoss(1.3, 0.4, label_smoothing=0.1),
            F.linear_alpha_relu_loss,
            {"alpha": 1.3, "tau": 0.4},
        ),
    ]
    for module, function, parameters in pairs:
        expected = function(x, w, target, linear_bias=b, label_smoothing=0.1, **parameters)
        torch.testing.assert_close(module(x, w, target, b), expected)
        assert repr(module)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"target": torch.rand(ROWS)}, "class indices"),
        ({"target": torch.zeros(3, dtype=torch.long)}, r"shape \(7,\)"),
        ({"target": [0] * ROWS}, "tensor of class indices, got list"),
        ({"target": torch.zeros(ROWS, dtype=torch.complex64)}, "class indices"),
        ({"linear_weight": torch.rand(CLASSES, 0)}, r"must be \(classes, features\)"),
        ({"weight": torch.rand(CLASSES, requires_grad=True)}, "weight receives no gradient"),
        ({"linear_weight": torch.rand(CLASSES, 4)}, "4 features"),
        ({"linear_weight": torch.rand(CLASSES, FEATURES).bfloat16()}, "one dtype"),
        ({"linear_bias": torch.rand(3)}, "linear_bias must have one value per class"),
        ({"weight": torch.rand(3)}, "weight must have one value per class"),
        ({"target": torch.zeros(ROWS, dtype=torch.long, device="meta")}, "target is on meta"),
        ({"weight": torch.rand(CLASSES, device="meta")}, "weight is on meta and input on cpu"),
        ({"reduction": "avg"}, "reduction must be"),
        ({"label_smoothing": 2.0}, "label_smoothing"),
        ({"softcap": 0.0}, "softcap"),
        ({"alpha": 0.5}, "alpha must be finite"),
        ({"alpha": torch.tensor(1.5)}, "alpha must be a number"),
    ],
)
def test_bad_arguments_are_named(change, message):
    arguments = {
        "input": torch.rand(ROWS, FEATURES),
        "linear_weight": torch.rand(CLASSES, FEATURES),
        "target": torch.zeros(ROWS, dtype=torch.long),
    } | change
    with pytest.raises(UncorkError, match=message):
        F.linear_entmax_loss(**arguments)


def test_a_target_out_of_range_is_an_error_on_the_cpu():
    with pytest.raises(IndexError, match="out of bounds"):
        F.linear_entmax_loss(torch.rand(1, 2), torch.rand(3, 2), torch.tensor([3]))


@pytest.mark.parametrize("compiled", [False, True])
@compiling
def test_a_batch_without_any_target_moves_nothing(compiled):
    """The mean is NaN, and its gradients 0, as in cross_entropy."""
    x, w = (torch.rand(3, 4, requires_grad=True) for _ in range(2))
    loss = F.linear_alpha_relu_loss
    if compiled:
        loss = torch.compile(loss, backend="aot_eager")
    tau = torch.tensor(0.1, requires_grad=True)
    value = loss(x, w, torch.full((3,), -100), tau=tau)
    assert value.isnan()
    for gradient in torch.autograd.grad(value, (x, w, tau)):
        assert (gradient == 0).all()


@compiling
def test_compiled_with_a_transposed_weight_and_a_factor():
    """Gradients have the strides the tracer was told of; a factor is not rounded to 16 bits."""
    x = torch.rand(3, 4).bfloat16()
    w = torch.rand(4, 5).bfloat16().requires_grad_()
    target = torch.tensor([3, 0, 4])
    loss = torch.compile(lambda w: F.linear_entmax_loss(x, w.t(), target) / 3)
    (made,) = torch.autograd.grad(loss(w), w)
    eager = torch.autograd.grad(F.linear_entmax_loss(x, w.t(), target) / 3, w)[0]
    torch.testing.assert_close(made, eager, rtol=0, atol=0)


def test_label_smoothing_is_as_exact_as_its_dtype():
    z = torch.randn(3, 4, dtype=torch.float64)
    w = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    target = torch.tensor([0, 4, 2])
    (mine,) = torch.autograd.grad(F.linear_entmax_loss(z, w, target, label_smoothing=0.1), w)
    (other,) = torch.autograd.grad(F.entmax_loss(z @ w.T, target, label_smoothing=0.1), w)
    torch.testing.assert_close(mine, other, rtol=1e-12, atol=1e-15)


@every_loss
def test_derivatives_to_differentiate_again_are_the_same_with_a_tied_weight(name):
    """Hidden states are made from the weight, as those of tied embeddings are."""
    fused, unfused, parameters = FUSED[name]
    x, w, _, target = made()

    def slopes_of(loss_of, **how):
        hidden = torch.tanh(x @ w[:FEATURES])
        return torch.autograd.grad(loss_of(hidden), (x, w), **how)

    def loss(hidden):
        return fused(hidden, w, target, **parameters)

    def whole(hidden):
        return unfused(hidden @ w.T, target, **parameters)

    again = slopes_of(loss, create_graph=True)
    torch.testing.assert_close(again, slopes_of(loss))
    mine, truth = (
        torch.autograd.grad(sum(slope.square().sum() for slope in made), (x, w))
        for made in (again, slopes_of(whole, create_graph=True))
    )
    torch.testing.assert_close(mine, truth)
