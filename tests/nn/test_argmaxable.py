"""ArgmaxableLinear: no class is lost at any checkpoint, and it trains as a plain layer does."""

import copy
import io
import pickle

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import uncork.nn as unn  # noqa: E402
from uncork import Head, audit  # noqa: E402

from .process_groups import in_processes, needs_gloo  # noqa: E402

both = pytest.mark.parametrize("how", ["norm", "bias"])


def lost(layer):
    linear = layer.to_linear() if isinstance(layer, unn.ArgmaxableLinear) else layer
    result = audit(Head(linear.weight, linear.bias), device="cpu", jobs=1)
    return layer.out_features - result.counts["argmaxable"]


def many_classes(classes=60, each=12):
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(classes, 16, generator=generator)
    y = torch.arange(classes).repeat_interleave(each)
    x = centres[y] + 0.3 * torch.randn(len(y), 16, generator=generator)
    order = torch.randperm(len(y), generator=generator)
    return x[order], y[order]


def trained(head, epochs=25):
    """Accuracy on held-out data, and how many classes were lost at each of five checkpoints."""
    x, y = many_classes()
    split = len(y) * 3 // 4
    body = torch.nn.Sequential(
        torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, head.in_features)
    )
    optimiser = torch.optim.Adam([*body.parameters(), *head.parameters()], lr=5e-3)
    checkpoints = []
    for epoch in range(epochs):
        for start in range(0, split, 64):
            logits = head(body(x[start : min(start + 64, split)]))
            target = y[start : min(start + 64, split)]
            loss = torch.nn.functional.cross_entropy(logits, target)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        if epoch % 5 == 4:
            checkpoints.append(lost(head))
    with torch.no_grad():
        right = head(body(x[split:])).argmax(1) == y[split:]
    return right.float().mean().item(), checkpoints


@both
def test_trains_to_a_plain_layers_accuracy_and_audits_clean_at_every_checkpoint(how):
    torch.manual_seed(1)
    plain, _ = trained(torch.nn.Linear(6, 60))
    torch.manual_seed(1)
    found, checkpoints = trained(unn.ArgmaxableLinear(6, 60, how))
    assert plain > 0.9
    assert found > plain - 0.03
    assert checkpoints == [0] * 5


def test_a_plain_layer_through_two_features_does_lose_classes():
    torch.manual_seed(1)
    _, checkpoints = trained(torch.nn.Linear(2, 60), epochs=5)
    assert checkpoints[0] > 10
    torch.manual_seed(1)
    assert trained(unn.ArgmaxableLinear(2, 60, "bias"), epochs=5)[1] == [0]


@both
def test_the_constraint_holds_whatever_the_parameters(how):
    layer = unn.ArgmaxableLinear(4, 30, how, scale=2.5, dtype=torch.float64)
    with torch.no_grad():
        layer.rows.mul_(torch.logspace(-2, 1, 30, dtype=torch.float64)[:, None])
    norms = layer.weight.norm(dim=1)
    if how == "norm":
        assert layer.bias is None
        torch.testing.assert_close(norms, torch.full_like(norms, 2.5))
    else:
        torch.testing.assert_close(layer.bias, -0.5 * 2.5 * norms**2)
    assert lost(layer) == 0


@both
def test_a_metric_takes_the_place_of_the_norm(how):
    metric = torch.tensor([[2.0, 0.5, 0.0], [0.5, 1.0, 0.1], [0.0, 0.1, 0.5]])
    layer = unn.ArgmaxableLinear(3, 40, how, metric=metric)
    squares = ((layer.weight @ metric) * layer.weight).sum(1)
    if how == "norm":
        torch.testing.assert_close(squares, layer.scale.square().expand(40))
    else:
        torch.testing.assert_close(layer.bias, -0.5 * squares)
    assert lost(layer) == 0


@both
def test_the_plain_layer_it_exports_computes_the_same(how):
    layer = unn.ArgmaxableLinear(5, 12, how)
    x = torch.randn(3, 7, 5)
    linear = layer.to_linear()
    assert type(linear) is torch.nn.Linear
    assert (linear.bias is None) == (how == "norm")
    torch.testing.assert_close(linear(x), layer(x), rtol=0, atol=0)


@both
def test_state_copies_and_pickles_round_trip(how):
    layer = unn.ArgmaxableLinear(5, 12, how, metric=torch.eye(5) * 2)
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    other = unn.ArgmaxableLinear(5, 12, how, metric=torch.eye(5))
    other.load_state_dict(torch.load(file, weights_only=True))
    x = torch.randn(4, 5)
    for again in (other, copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        torch.testing.assert_close(again(x), layer(x), rtol=0, atol=0)


@both
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own tracing
def test_compiles_as_one_graph(how):
    layer = unn.ArgmaxableLinear(5, 12, how)
    x = torch.randn(4, 5)
    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), layer(x))
    compiled(x).square().sum().backward()
    assert layer.rows.grad.isfinite().all()
    assert layer.log_scale.grad.isfinite()


@both
def test_gradients_are_those_of_finite_differences(how):
    layer = unn.ArgmaxableLinear(3, 4, how, dtype=torch.float64)
    x = torch.randn(2, 3, dtype=torch.float64)

    def value(rows, log_scale):
        return torch.func.functional_call(layer, {"rows": rows, "log_scale": log_scale}, (x,))

    assert torch.autograd.gradcheck(value, (layer.rows, layer.log_scale))


@both
def test_half_precision_keeps_every_class_where_rows_are_apart(how):
    torch.manual_seed(0)
    layer = unn.ArgmaxableLinear(16, 200, how, dtype=torch.bfloat16)
    out = layer(torch.randn(3, 16, dtype=torch.bfloat16))
    assert out.dtype == torch.bfloat16
    out.float().sum().backward()
    assert layer.rows.grad.isfinite().all()
    assert lost(layer) == 0


@both
def test_under_autocast_the_parameters_stay_wide(how):
    layer = unn.ArgmaxableLinear(16, 20, how)
    with torch.autocast("cpu", torch.bfloat16):
        out = layer(torch.randn(3, 16))
    assert out.dtype == torch.bfloat16
    assert layer.weight.dtype == torch.float32


def test_it_starts_from_a_trained_layer():
    linear = torch.nn.Linear(4, 50)
    norm = unn.ArgmaxableLinear.from_linear(linear)
    torch.testing.assert_close(norm.scale, linear.weight.norm(dim=1).mean())
    cosine = torch.nn.functional.cosine_similarity(norm.weight, linear.weight)
    torch.testing.assert_close(cosine, torch.ones(50))
    bias = unn.ArgmaxableLinear.from_linear(linear, "bias", scale=0.5)
    torch.testing.assert_close(bias.weight, linear.weight)
    assert lost(norm) == lost(bias) == 0


def test_rows_keep_their_length_by_the_metric():
    linear = torch.nn.Linear(4, 50)
    layer = unn.ArgmaxableLinear.from_linear(linear, metric=4 * np.eye(4))
    mean = linear.weight.norm(dim=1).mean()
    torch.testing.assert_close(layer.weight.norm(dim=1), mean.expand(50))


def test_the_scale_can_be_held_fixed():
    layer = unn.ArgmaxableLinear(4, 5, learn_scale=False, scale=3.0)
    assert [name for name, p in layer.named_parameters() if p.requires_grad] == ["rows"]
    layer(torch.randn(2, 4)).sum().backward()
    assert layer.log_scale.grad is None
    assert "how='norm'" in repr(layer)


def _train_in_parallel(rank):
    for how in ("norm", "bias"):
        layer = unn.ArgmaxableLinear(4, 5, how)
        model = torch.nn.parallel.DistributedDataParallel(layer)
        for _ in range(2):  # the second pass raises if a parameter went unused in the first
            model(torch.randn(3, 4)).square().sum().backward()
        assert layer.rows.grad.isfinite().all()


@pytest.mark.slow
@needs_gloo
def test_data_parallel_training_finds_every_parameter_used(tmp_path):
    in_processes(_train_in_parallel, tmp_path, count=1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"how": "both"}, "expected norm or bias"),
        ({"scale": 0.0}, "positive number"),
        ({"metric": torch.eye(3)}, r"expected \(4, 4\)"),
        ({"metric": -torch.eye(4)}, "positive definite"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        unn.ArgmaxableLinear(4, 5, **settings)


def test_a_row_of_zeros_neither_divides_by_zero_nor_breaks_the_gradient():
    layer = unn.ArgmaxableLinear(3, 4)
    with torch.no_grad():
        layer.rows[1] = 0
    layer(torch.randn(2, 3)).sum().backward()
    assert layer.weight.isfinite().all()
    assert layer.rows.grad.isfinite().all()
    assert np.isfinite(layer.to_linear().weight.detach().numpy()).all()


def test_a_scale_saved_as_a_plain_number_is_loaded():
    layer = unn.ArgmaxableLinear(3, 5)
    state = layer.state_dict() | {"log_scale": torch.tensor(0.7)}
    model = torch.nn.Sequential(unn.ArgmaxableLinear(3, 5))
    model.load_state_dict({f"0.{name}": value for name, value in state.items()})
    assert float(model[0].log_scale.detach()) == pytest.approx(0.7)
    assert model[0].scale.dim() == 0
