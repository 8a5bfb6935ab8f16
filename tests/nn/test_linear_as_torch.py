"""linear_cross_entropy and LinearCrossEntropyLoss are called, and answer, as torch's own do."""

import inspect

import pytest

torch = pytest.importorskip("torch")

import uncork.nn as unn  # noqa: E402
import uncork.nn.functional as F  # noqa: E402
from uncork import UncorkError  # noqa: E402
from uncork.nn.linear import blocks  # noqa: E402

ROWS, CLASSES, FEATURES = 6, 11, 4
theirs = getattr(torch.nn.functional, "linear_cross_entropy", None)
needs_theirs = pytest.mark.skipif(theirs is None, reason="torch before 2.13 has none")


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK_ELEMENTS", 3 * CLASSES)


def expected(input, linear_weight, target, *, linear_bias=None, **how):
    """torch's words: cross_entropy(linear(input, linear_weight, linear_bias), target, **how)."""
    classes, *places, features = linear_weight.shape
    flat = None if linear_bias is None else linear_bias.reshape(-1)
    logits = torch.nn.functional.linear(input, linear_weight.reshape(-1, features), flat)
    logits = logits.reshape(*input.shape[:-1], classes, *places)
    if how.get("ignore_index", 0) is None:
        how.pop("ignore_index")
    return torch.nn.functional.cross_entropy(logits, target, **how)


def made(places=(), dense=False, seed=0):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(ROWS, FEATURES, generator=g, dtype=torch.float64, requires_grad=True)
    w = torch.randn(
        CLASSES, *places, FEATURES, generator=g, dtype=torch.float64, requires_grad=True
    )
    b = torch.randn(CLASSES, *places, generator=g, dtype=torch.float64, requires_grad=True)
    if dense:
        target = torch.rand(ROWS, CLASSES, *places, generator=g, dtype=torch.float64).softmax(1)
    else:
        target = torch.randint(0, CLASSES, (ROWS, *places), generator=g)
        target[2] = -100
    weight = torch.rand(CLASSES, generator=g, dtype=torch.float64)
    return x, w, b, target, weight


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("places", [(), (2, 3)])
@pytest.mark.slow
def test_values_and_gradients_are_those_of_cross_entropy(
    reduction, smoothing, weighted, dense, places
):
    x, w, b, target, weight = made(places, dense)
    how = {"reduction": reduction, "label_smoothing": smoothing, "ignore_index": None}
    if weighted:
        how["weight"] = weight
    mine = F.linear_cross_entropy(x, w, target, linear_bias=b, **how)
    truth = [expected(x, w, target, linear_bias=b, **how)]
    if theirs is not None:
        truth.append(theirs(x, w, target, linear_bias=b, **how))
    for one in truth:
        torch.testing.assert_close(mine, one)
        up = torch.linspace(1, 2, one.numel(), dtype=one.dtype).reshape(one.shape)
        torch.testing.assert_close(
            torch.autograd.grad(mine, (x, w, b), up, retain_graph=True),
            torch.autograd.grad(one, (x, w, b), up),
        )


@pytest.mark.parametrize("places", [(), (2, 3)])
def test_probabilities_have_no_index_to_ignore(places):
    x, w, b, target, _ = made(places, dense=True)
    with pytest.raises(UncorkError, match="ignore_index=0 is not supported"):
        F.linear_cross_entropy(x, w, target, linear_bias=b, ignore_index=0)
    with pytest.raises(RuntimeError, match="ignore_index is not supported"):
        expected(x, w, target, linear_bias=b, ignore_index=0)


def test_one_row_without_a_batch():
    x, w, b, target, _ = made()
    mine = F.linear_cross_entropy(x[0], w, target[0], linear_bias=b, reduction="none")
    torch.testing.assert_close(mine, expected(x[0], w, target[0], linear_bias=b, reduction="none"))


@pytest.mark.parametrize("rows", [ROWS, 0])
def test_positions_without_any_target_move_nothing(rows):
    """The mean is NaN, and its gradients 0, as in cross_entropy."""
    x, w, b, target, weight = made((2, 3))
    none = torch.full_like(target, -100)[:rows]
    for how in ({}, {"weight": weight}, {"z_loss": 0.1, "weight": weight}):
        loss = F.linear_cross_entropy(x[:rows], w, none, linear_bias=b, **how)
        assert loss.isnan()
        assert all((slope == 0).all() for slope in torch.autograd.grad(loss, (x, w, b)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dense", [False, True])
def test_a_mean_over_positions_divides_by_a_sum_in_float32(dtype, dense):
    """Of 16 bits, a sum over 2,001 rows has lost a row, or has no room for their weights."""
    g = torch.Generator().manual_seed(0)
    x = torch.zeros(667, 2, dtype=dtype)
    w = torch.zeros(CLASSES, 3, 2, dtype=dtype)
    target = torch.randint(0, CLASSES, (667, 3), generator=g)
    how = {"weight": torch.full((CLASSES,), 100.0, dtype=dtype)}
    if dense:
        how, target = {}, torch.nn.functional.one_hot(target, CLASSES).movedim(-1, 1).to(dtype)
    loss = F.linear_cross_entropy(x, w, target, **how)
    torch.testing.assert_close(loss, torch.tensor(float(CLASSES)).log(), rtol=1e-5, atol=0)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32])
@pytest.mark.parametrize("places", [(), (2, 3)])
def test_targets_of_any_whole_type_choose_class_weights(dtype, places):
    x, w, b, target, weight = made(places)
    target = target.clamp(min=0)
    for how in ({"weight": weight}, {"weight": weight, "z_loss": 0.1}):
        mine = F.linear_cross_entropy(x, w, target.to(dtype), linear_bias=b, **how)
        truth = F.linear_cross_entropy(x, w, target, linear_bias=b, **how)
        torch.testing.assert_close(mine, truth, rtol=0, atol=0)


@needs_theirs
def test_every_argument_of_torch_is_one_of_ours_in_the_same_place():
    own = inspect.signature(F.linear_cross_entropy).parameters
    for name, one in inspect.signature(theirs).parameters.items():
        assert own[name].kind == one.kind
        assert own[name].default == (-100 if name == "ignore_index" else one.default)
    assert list(own)[:3] == ["input", "linear_weight", "target"]
    own = inspect.signature(unn.LinearCrossEntropyLoss.__init__).parameters
    module = inspect.signature(torch.nn.LinearCrossEntropyLoss.__init__).parameters
    assert list(own)[: len(module)] == list(module)
    assert [own[name].kind for name in module] == [one.kind for one in module.values()]


@needs_theirs
def test_options_of_torch_are_taken():
    x, w, _, target, _ = made()
    options = torch.nn.LinearCrossEntropyOptions()
    torch.testing.assert_close(
        F.linear_cross_entropy(x, w, target, options=options), theirs(x, w, target)
    )


@pytest.mark.parametrize("places", [(), (2, 3)])
@pytest.mark.parametrize("bias", [False, True])
def test_the_module_has_torch_s_layer(places, bias):
    x, _, _, target, weight = made(places)
    given = {"out_features": places, "bias": bias, "dtype": torch.float64, "weight": weight}
    module = unn.LinearCrossEntropyLoss(FEATURES, CLASSES, **given)
    shape = (CLASSES, *places)
    linear_bias = module.linear.bias.reshape(shape) if bias else None
    truth = expected(
        x, module.linear.weight.reshape(*shape, FEATURES), target, linear_bias=linear_bias,
        weight=weight,
    )  # fmt: skip
    torch.testing.assert_close(module(x, target), truth)
    if theirs is not None:
        other = torch.nn.LinearCrossEntropyLoss(FEATURES, CLASSES, **given)
        other.load_state_dict(module.state_dict())
        torch.testing.assert_close(module(x, target), other(x, target))


def test_without_sizes_the_layer_stays_where_it_is():
    x, w, b, target, _ = made()
    module = unn.LinearCrossEntropyLoss(label_smoothing=0.1)
    assert list(module.parameters()) == []
    torch.testing.assert_close(
        module(x, w, target, b), expected(x, w, target, linear_bias=b, label_smoothing=0.1)
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"target": torch.zeros(ROWS, CLASSES + 1)}, "or probabilities with 11 classes"),
        ({"target": torch.zeros(ROWS, CLASSES, requires_grad=True)}, "target.detach"),
        ({"z_loss": -1.0}, "z_loss"),
        ({"token_weight": torch.ones(2)}, "token_weight must have shape"),
        ({"token_weight": torch.ones(ROWS, requires_grad=True)}, 'reduction="none" alone'),
    ],
)
def test_what_is_wrong_is_named(change, message):
    x, w, _, target, _ = made()
    given = {"target": target, **change}
    with pytest.raises(UncorkError, match=message):
        F.linear_cross_entropy(x, w, given.pop("target"), **given)


def test_half_a_size_is_refused():
    with pytest.raises(UncorkError, match="together"):
        unn.LinearCrossEntropyLoss(4)


def test_positions_are_refused_where_they_do_not_fit():
    x, w, b, target, _ = made((2, 3))
    for given, message in [
        ({"input": x[0]}, "needs input"),
        ({"target": target[:, 0]}, "target must have shape"),
        ({"linear_bias": b[:, 0]}, "linear_bias must have shape"),
        ({"return_lse": True}, "return_lse"),
        ({"reduction": "average"}, "reduction must be"),
        ({"linear_weight": w[:, :0], "target": target[:, :0]}, "classes, positions and features"),
    ]:
        call = {"input": x, "linear_weight": w, "target": target, **given}
        with pytest.raises(UncorkError, match=message):
            F.linear_cross_entropy(**call)
