"""τ for α-ReLU: from the shape as in the paper, from data, and set on a model."""

import math

import pytest

torch = pytest.importorskip("torch")

import uncork.nn as unn  # noqa: E402
import uncork.nn.functional as F  # noqa: E402
from uncork import UncorkError  # noqa: E402
from uncork.nn import reference  # noqa: E402


@pytest.mark.parametrize(
    ("classes", "share", "tau"),
    [(10_000, 0.0184, 0.33), (40_000, 0.0171, 0.17), (60_000, 0.0169, 0.14)],
)
def test_tau_from_shape_is_the_papers(classes, share, tau):
    """Tezekbayev et al. 2022, Table 3. The last share is .01697 by their equation."""
    assert round(unn.tau_from_shape(512, classes), 2) == tau
    found = unn.support_share_from_shape(512, classes)
    assert found == pytest.approx(share, abs=1e-4 if classes == 60_000 else 0.5e-4)


@pytest.mark.parametrize(("classes", "tau"), [(10_000, 0.3258), (40_000, 0.1683), (60_000, 0.1379)])
def test_tau_from_shape_keeps_its_four_digits(classes, tau):
    assert unn.tau_from_shape(512, classes) == pytest.approx(tau, abs=0.5e-4)


@pytest.mark.parametrize("alpha", [1.2, 1.5, 1.75, 2.0, 2.5])
def test_tau_from_shape_is_near_the_threshold_of_normal_logits_for_any_alpha(alpha):
    features, classes = 512, 10_000
    std = (2 * features / (features + classes)) ** 0.5
    z = torch.randn(64, classes, generator=torch.Generator().manual_seed(0)) * std
    measured = unn.tau_from_data(z, alpha)
    predicted = unn.tau_from_shape(features, classes, alpha)
    # Cutting the normal off at its largest logit lowers τ; the error grows with α.
    assert predicted == pytest.approx(measured, abs=0.005 if alpha <= 1.5 else 0.05)


def test_tau_from_shape_is_continuous_in_alpha_at_the_closed_form():
    at = unn.tau_from_shape(512, 10_000, 1.5)
    assert unn.tau_from_shape(512, 10_000, 1.5 + 1e-7) == pytest.approx(at, abs=1e-6)
    assert unn.tau_from_shape(512, 10_000, 1.5 - 1e-7) == pytest.approx(at, abs=1e-6)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((0, 10), "features >= 1"),
        ((4, 1), "classes >= 2"),
        ((4, 10, 1.0), "alpha must be finite and > 1"),
    ],
)
def test_an_impossible_shape_is_named(arguments, says):
    with pytest.raises(ValueError, match=says):
        unn.tau_from_shape(*arguments)


@pytest.mark.parametrize("std", [0.0, -1.0, float("inf"), float("nan")])
def test_an_impossible_spread_of_logits_is_named(std):
    with pytest.raises(UncorkError, match=f"logit_std must be finite and > 0, got {std}"):
        unn.tau_from_shape(4, 10, logit_std=std)


@pytest.fixture(scope="module")
def hidden():
    """What arrives at the head of an untrained Transformer: 6 sentences of 16 tokens."""
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(512, 8, 1024, batch_first=True, norm_first=True)
    model = torch.nn.TransformerEncoder(
        layer, 2, norm=torch.nn.LayerNorm(512), enable_nested_tensor=False
    ).eval()
    tokens = torch.nn.Embedding(1000, 512)(torch.randint(1000, (6, 16)))
    with torch.no_grad():
        return model(tokens)


@pytest.mark.parametrize("classes", [10_000, 40_000, 60_000])
def test_tau_from_shape_agrees_with_an_untrained_transformer_to_two_decimals(hidden, classes):
    head = torch.nn.Linear(512, classes, bias=False)
    torch.nn.init.xavier_normal_(head.weight, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        batches = (head(sentence) for sentence in hidden)
        measured = unn.tau_from_data(batches)
    assert round(measured, 2) == round(unn.tau_from_shape(512, classes), 2)


def test_tau_from_data_is_the_mean_threshold():
    z = torch.randn(5, 40, dtype=torch.float64)
    for alpha in (1.3, 1.5, 2.0):
        expected = reference.entmax_threshold(z.numpy(), alpha).mean()
        assert unn.tau_from_data(z, alpha) == pytest.approx(expected, abs=1e-12)
    assert unn.tau_from_data(z.t(), dim=0) == pytest.approx(unn.tau_from_data(z), abs=1e-12)


def test_batches_stream_to_the_same_value_and_masks_leave_rows_out():
    z = torch.randn(10, 40, dtype=torch.float64)
    whole = unn.tau_from_data(z)
    assert unn.tau_from_data(iter([z[:3], z[3:4], z[4:]])) == pytest.approx(whole, abs=1e-12)
    keep = torch.arange(10) < 6
    for mask in (keep, keep.long()):  # an attention mask is of integers
        assert unn.tau_from_data(z, mask=mask) == pytest.approx(unn.tau_from_data(z[:6]), abs=1e-12)
    z[7] = -torch.inf
    rest = [i for i in range(10) if i != 7]
    assert unn.tau_from_data(z) == pytest.approx(unn.tau_from_data(z[rest]), abs=1e-12)
    with pytest.raises(ValueError, match="no rows"):
        unn.tau_from_data(z[7:8])
    with pytest.raises(ValueError, match="TauMeter"):
        unn.tau_from_data([z], mask=keep)
    with pytest.raises(ValueError, match=r"shape of the rows, \(10,\), got \(3,\)"):
        unn.tau_from_data(z, mask=keep[:3])
    with pytest.raises(ValueError, match="alpha must be finite and > 1"):
        unn.tau_from_data(z, alpha=1.0)  # softmax has no threshold
    with pytest.raises(TypeError, match=r"logits must be a torch\.Tensor, got ndarray"):
        unn.tau_from_data(z.numpy())


def test_calibrate_tau_sets_the_layer_inside_a_model():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 50), unn.AlphaReLU())
    batch = torch.randn(20, 8)
    value = unn.calibrate_tau(model, batch)
    assert value == pytest.approx(unn.tau_from_data(model[0](batch)), abs=1e-6)
    assert float(model[1].tau) == pytest.approx(value)
    assert float(model.state_dict()["1.tau"]) == pytest.approx(value)
    # Rows then sum to one on average, near enough to begin with.
    assert float(model(batch).detach().sum(-1).mean()) == pytest.approx(1, abs=0.5)


def test_calibrate_tau_sets_the_loss_of_a_model_that_returns_logits():
    model, loss = torch.nn.Linear(8, 50), unn.AlphaReLULoss(1.5)
    batch = torch.randn(20, 8)
    value = unn.calibrate_tau(model, batch, criterion=loss)
    assert float(loss.tau) == pytest.approx(unn.tau_from_data(model(batch)), abs=1e-6) == value
    target = torch.randint(50, (20,))
    torch.testing.assert_close(
        loss(model(batch), target), F.alpha_relu_loss(model(batch), target, tau=float(loss.tau))
    )
    with pytest.raises(ValueError, match="criterion"):
        unn.calibrate_tau(model, batch)
    with pytest.raises(ValueError, match="EntmaxLoss has no tau"):
        unn.calibrate_tau(model, batch, criterion=unn.EntmaxLoss())
    with pytest.raises(ValueError, match="not logits but dict"):
        unn.calibrate_tau(_Named(), batch, criterion=loss)
    assert unn.calibrate_tau(_Named(), batch, criterion=loss, logits_of=lambda made: made["z"])


class _Named(torch.nn.Module):
    """Returns its logits under a name of its own."""

    def forward(self, batch):
        return {"z": batch}


def test_rows_with_nan_are_an_error_unless_masked():
    logits = torch.randn(6, 50)
    logits[2, 3] = float("nan")
    with pytest.raises(UncorkError, match="1 rows of logits hold NaN"):
        unn.tau_from_data(logits)
    keep = torch.arange(6) != 2
    assert unn.tau_from_data(logits, mask=keep) == pytest.approx(unn.tau_from_data(logits[keep]))


@pytest.mark.parametrize(("features", "classes"), [(512, 10_000), (512, 40_000), (64, 300)])
def test_the_share_solves_the_papers_own_equation(features, classes):
    """Tezekbayev et al. 2022, App. B.2, with the moments taken by quadrature over x."""
    from scipy import integrate, special

    p, least = unn.support_share_from_shape(features, classes), 1 / classes
    variance = 2 * features / (features + classes)

    def mean(function):
        area, _ = integrate.quad(lambda x: function(-special.ndtri(x)), least, p, limit=200)
        return area / (p - least)

    m = mean(lambda u: u)
    s = mean(lambda u: (u - m) ** 2)
    right = m - math.sqrt(4 * least / (variance * p) - s)
    assert -special.ndtri(p) == pytest.approx(right, abs=1e-7)
    tau = math.sqrt(variance) / 2 * -special.ndtri(p)
    assert unn.tau_from_shape(features, classes) == pytest.approx(tau, abs=1e-12)
