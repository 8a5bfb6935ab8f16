"""Sums of the piecewise link's residual by counting values: those of all logits in float64."""

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

import uncork.nn as unn  # noqa: E402
from uncork.nn.kernels.links import counts, linked  # noqa: E402
from uncork.nn.linear.links import Pieces  # noqa: E402

from .with_kernels import DEVICE, MARKS, kernels_on  # noqa: E402

pytestmark = MARKS
ROUNDING = 3e-5  # f is off by 20 · 2⁻²⁴ in float32, and most of what is added up cancels
PIECES, BOUND = 51, 20.0  # no border at 0, where float32 cannot tell the sides apart


@pytest.fixture(autouse=True)
def short_rows_are_counted(monkeypatch):
    monkeypatch.setattr(counts, "LEAST", 1)
    monkeypatch.setattr(counts, "PROGRAMS", 1)


def slopes_of(steepness=1.0):
    """Before softplus, uneven."""
    steep = steepness * (1 + 0.5 * torch.sin(torch.arange(PIECES, dtype=torch.float64)))
    return torch.log(torch.expm1(steep)).float().to(DEVICE)


def by_kernels(z, target, slopes, bound=BOUND):
    """(residual, the slopes' gradient) of logits z (R, C), rows weighted 1, 2, … ."""
    link = Pieces(PIECES, bound).begin(slopes, len(z), torch.float32)
    with kernels_on():
        rows = link(z.clone(), target)
        residual = rows.residual(torch.arange(1.0, len(z) + 1, device=z.device))
        return residual, link.by_parameters()


def in_float64(z, target, slopes, bound=BOUND):
    head = unn.heads.PlifHead(1, z.shape[1], pieces=PIECES, bound=bound, dtype=torch.float64)
    z = z.cpu().double().requires_grad_()
    slopes = slopes.cpu().double().requires_grad_()
    masked = z.isinf()
    f = head._function(torch.where(masked, 0.0, z), slopes).masked_fill(masked, -torch.inf)
    losses = torch.nn.functional.cross_entropy(f, target.cpu(), reduction="none")
    (losses * torch.arange(1.0, len(z) + 1)).sum().backward()
    return z.grad, slopes.grad


def errors(made, truth):
    """Of the residual and the slopes' gradient, as shares of their size."""
    return [
        float((one.cpu().double() - other).norm() / other.norm())
        for one, other in zip(made, truth, strict=True)
    ]


def normal(scale, rows=5, classes=900):
    torch.manual_seed(0)
    return (scale * torch.randn(rows, classes)).bfloat16().to(DEVICE)


def first(z):
    return torch.arange(len(z), device=z.device) * 7 % z.shape[1]


def changed(name, z):
    if name == "masked":
        z[:, 100:300] = -torch.inf
    elif name == "masked by a number":
        z[1:, 100:300] = torch.finfo(z.dtype).min
    elif name == "masked target":
        z[2, first(z)[2]] = -torch.inf
    elif name == "zeros":
        z[:, ::2] = 0.0
        z[:, 1::4] = -0.0
    elif name == "near zero":
        z *= 2.0**-30
    elif name == "some rows beyond the values":
        z[1, 5:40] = 70.0
        z[3, 7] = -100.0
    elif name == "some rows far from zero":
        z[::2] += 60.0
        z[1] -= 55.0
    return z


CASES = [
    "as it is", "masked", "masked by a number", "masked target", "zeros", "near zero",
    "some rows beyond the values", "some rows far from zero",
]  # fmt: skip


@pytest.mark.parametrize("scale", [0.5, 8.0])
@pytest.mark.parametrize("case", CASES)
def test_counted_sums_are_those_of_all_logits(scale, case, monkeypatch):
    z = changed(case, normal(scale))
    given = (z, first(z), slopes_of())
    truth = in_float64(*given)
    residual, by_slopes = errors(by_kernels(*given), truth)
    assert residual <= 2**-7  # it is bfloat16
    monkeypatch.setattr(linked, "room_for_counts", lambda logits, rows: None)
    _, one_by_one = errors(by_kernels(*given), truth)
    assert by_slopes <= max(2 * one_by_one, ROUNDING)


def test_every_value_between_the_bounds_is_counted_as_itself():
    bits = torch.arange(-(2**15), 2**15).to(torch.int16).view(torch.bfloat16)
    values = bits[(bits.abs() < 63) & ((bits.abs() >= 2.0**-26) | (bits == 0))]
    assert len(values) == 8186  # of 8,192
    z = values.to(DEVICE).unsqueeze(0)
    given = (z, first(z), slopes_of(0.02), 64.0)  # all have a share in it
    _, found = by_kernels(*given)
    truth = in_float64(*given)[1]
    # To take one value for another would change some slope's by a share of 1 / 8186 of its piece.
    torch.testing.assert_close(found.cpu().double(), truth, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("span", [4096, 1 << 20])
def test_rows_in_several_parts_and_more_rows_than_programs(span, monkeypatch):
    monkeypatch.setattr(counts, "SPAN", span)
    z = normal(2.0, 7, 9000)
    given = (z, first(z) + 4090, slopes_of())
    _, by_slopes = errors(by_kernels(*given), in_float64(*given))
    assert by_slopes <= ROUNDING


def test_blocks_of_rows_add_up():
    z = normal(2.0, 6)
    target, slopes = first(z), slopes_of()
    link = Pieces(PIECES, BOUND).begin(slopes, 4, torch.float32)
    weights = torch.arange(1.0, 7, device=DEVICE)
    with kernels_on():
        for part in (slice(0, 4), slice(4, 6)):
            link(z[part].clone(), target[part]).residual(weights[part])
        found = link.by_parameters()
    truth = in_float64(z, target, slopes)[1]
    assert errors([found], [truth])[0] <= ROUNDING


def test_no_count_is_lost_between_threads():
    """Sums by value do not depend on which thread comes first: the same, bit for bit."""
    rows = 2000 if DEVICE == "cuda" else 3
    z, found = normal(1.0, rows, 9000), []
    for _ in range(20 if DEVICE == "cuda" else 2):
        link = Pieces(PIECES, BOUND).begin(slopes_of(), rows, torch.float32)
        with kernels_on():
            link(z.clone(), first(z)).residual(torch.ones(rows, device=DEVICE))
        found.append(link.linked.by_value)
    assert all(torch.equal(one, found[0]) for one in found)


def test_nan_reaches_the_slopes():
    z = normal(1.0)
    z[1, 3] = torch.nan
    _, found = by_kernels(z, first(z), slopes_of())
    assert found.isnan().any()


@pytest.mark.parametrize("capability", [(8, 0), (8, 9), (9, 0), (12, 0)])
def test_older_gpus_on_which_the_table_would_not_fit_do_not_count(monkeypatch, capability):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(counts, "multiprocessors", lambda device: 2)
    monkeypatch.setattr(torch, "zeros", lambda shape, device: shape)
    logits = SimpleNamespace(dtype=torch.bfloat16, shape=(4, 5003), device=torch.device("cuda", 0))
    assert (counts.room_for_counts(logits, 4) is not None) is (capability >= (9, 0))
