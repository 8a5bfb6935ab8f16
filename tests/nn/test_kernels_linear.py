"""The kernels of the linear losses against their torch twin in float64."""

import dataclasses

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

import uncork.nn.functional as F  # noqa: E402
from uncork.nn.linear import blocks as torch_blocks  # noqa: E402
from uncork.nn.linear import cuda  # noqa: E402
from uncork.nn.linear.autograd import compute  # noqa: E402
from uncork.nn.linear.problem import NOTHING, LinearOptions, LinearTensors, Wanted  # noqa: E402
from uncork.nn.losses import LOSSES  # noqa: E402

from .with_kernels import DEVICE, MARKS, ON_GPU, kernels_on  # noqa: E402

pytestmark = MARKS
ROWS, CLASSES, FEATURES = 5, 205, 12  # three slices, and five classes left over


def entmax(alpha, **more):
    return LinearOptions(LOSSES["entmax"], (alpha,), **more)


def alpha_relu(alpha, **more):
    return LinearOptions(LOSSES["alpha_relu"], (alpha,), **more)


CASES = {
    "alpha_relu": alpha_relu(1.5),
    "alpha_relu smoothed": alpha_relu(1.5, label_smoothing=0.1),
    "alpha_relu 1.3 capped": alpha_relu(1.3, softcap=4.0),
    "entmax": entmax(1.5),
    "entmax smoothed": entmax(1.5, label_smoothing=0.1),
    "entmax smoothed capped": entmax(1.5, label_smoothing=0.1, softcap=4.0),
    "sparsemax capped": entmax(2.0, softcap=3.0),
    "entmax 1.2": entmax(1.2),
    "entmax 3": entmax(3.0),
    "softmax": entmax(1.0),
    "softmax smoothed capped": entmax(1.0, label_smoothing=0.1, softcap=3.0),
}


@pytest.fixture(autouse=True)
def small_slices(monkeypatch):
    monkeypatch.setattr(cuda, "MOST_BYTES", ROWS * 4 * 80)
    monkeypatch.setattr(cuda, "BLOCK_BYTES", {True: 4 * 3 * 208, False: 4 * 3 * 208})
    monkeypatch.setattr(cuda, "SMALL", 0)
    monkeypatch.setattr(cuda, "slice_width", lambda rows, classes, size, room: min(80, classes))


def made(scale=1.0, bias=True, weighted=False):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, FEATURES, generator=g)
    w = torch.randn(CLASSES, FEATURES, generator=g) * scale
    b = torch.randn(CLASSES, generator=g) * 0.3 if bias else None
    class_weight = torch.rand(CLASSES, generator=g) if weighted else None
    target = torch.tensor([3, 204, -100, 100, 3])
    upstream = torch.rand(ROWS, generator=g)
    tau = torch.tensor(0.4)
    on = [
        None if t is None else t.to(DEVICE) for t in (x, w, b, tau, target, class_weight, upstream)
    ]
    return on


def computed(tensors, options, wanted):
    return compute(LinearTensors(*tensors[:6]), tensors[6], options, wanted)


def exact(tensors, options, wanted):
    wide = [t if t is None or not t.is_floating_point() else t.double().cpu() for t in tensors]
    wide[4] = wide[4].cpu()
    return torch_blocks.compute(LinearTensors(*wide[:6]), wide[6], options, wanted)


def assert_same(got, expected, tolerance=1e-5):
    for name, mine, truth in zip(expected._fields, got, expected, strict=True):
        assert (mine is None) == (truth is None), name
        if truth is not None:
            error = (mine.double().cpu() - truth).norm()
            assert error <= tolerance * truth.norm() + 1e-9, (name, float(error))


@pytest.fixture
def wide_rows(monkeypatch):
    """Whole rows as those of large vocabularies: more than a multiprocessor holds, many tiles."""
    monkeypatch.setattr(cuda, "WIDEST", 0)
    monkeypatch.setattr(cuda, "LANES", 32)
    monkeypatch.setattr(cuda.Lists, "collect", classmethod(lambda cls, head: None))


@pytest.mark.parametrize("way", ["as it comes", "dense", "float32", "small"])
@pytest.mark.parametrize("name", CASES)
def test_losses_and_gradients_equal_the_twin(name, way, monkeypatch):
    options = CASES[name]
    tensors = made(bias="1.2" not in name, weighted="smoothed" in name)
    wanted = Wanted(True, True, tensors[2] is not None, options.fixed)
    if way == "small":
        monkeypatch.setattr(cuda, "SMALL", 10**12)
    elif way != "as it comes":
        monkeypatch.setattr(cuda.Lists, "collect", classmethod(lambda cls, head: None))
    if way == "float32":
        options = LinearOptions(**{**options.__dict__, "float32_accumulation": True})
    with kernels_on():
        got = computed(tensors, options, wanted)
    assert_same(got, exact(tensors, options, wanted))


@pytest.mark.parametrize("precise", [None, True])
@pytest.mark.parametrize("name", [name for name in CASES if "relu" not in name])
def test_wide_rows_equal_the_twin(name, precise, wide_rows):
    options = LinearOptions(**{**CASES[name].__dict__, "float32_accumulation": precise})
    tensors = made(bias="1.2" not in name, weighted="smoothed" in name)
    wanted = Wanted(True, True, tensors[2] is not None, False)
    with kernels_on():
        got = computed(tensors, options, wanted)
        alone = computed([*tensors[:6], None], options, NOTHING)
    expected = exact(tensors, options, wanted)
    assert_same(got, expected)
    torch.testing.assert_close(alone.losses.double().cpu(), expected.losses, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("place", [0, 40, 70, 200] if ON_GPU else [0, 70])
@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0, 3.0] if ON_GPU else [1.0, 1.5, 3.0])
@pytest.mark.parametrize("others", ["flat", "much alike", "spread"])
def test_a_peak_anywhere_in_a_wide_row(others, alpha, place, wide_rows):
    """The tiles that a guess is made from see it, or do not."""
    tensors = made({"flat": 0.0, "much alike": 1e-3, "spread": 1.0}[others], bias=False)
    tensors[1][place] = 5.0
    options, wanted = entmax(alpha), Wanted(True, True, False, False)
    with kernels_on():
        got = computed(tensors, options, wanted)
    assert_same(got, exact(tensors, options, wanted), tolerance=2e-5)


@pytest.mark.parametrize("level", [-60.0, 0.0, 60.0] if ON_GPU else [-60.0, 60.0])
@pytest.mark.parametrize("allowed", [slice(0, 40), slice(40, 64), slice(200, 205)])
@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0] if ON_GPU else [1.0, 1.5])
def test_classes_ruled_out_by_a_bias_in_a_wide_row(alpha, allowed, level, wide_rows):
    """Most are −inf, whichever tiles a guess is made from; the others lie anywhere."""
    tensors = made(bias=True)
    tensors[4] = torch.full_like(tensors[4], allowed.start)
    barred = torch.full_like(tensors[2], -torch.inf)
    barred[allowed] = tensors[2][allowed] + level
    tensors[2] = barred
    options, wanted = entmax(alpha), Wanted(True, True, True, False)
    with kernels_on():
        got = computed(tensors, options, wanted)
    assert_same(got, exact(tensors, options, wanted), tolerance=3e-5)


@pytest.mark.parametrize("scale", [1e-3, 0.1, 10.0])
@pytest.mark.parametrize("alpha", [1.5, 2.0])
def test_flat_and_peaked_logits(alpha, scale):
    """Lists overflow for the one and hold a single entry for the other."""
    tensors = made(scale, bias=False)
    options, wanted = entmax(alpha), Wanted(True, True, False, False)
    with kernels_on():
        got = computed(tensors, options, wanted)
    assert_same(got, exact(tensors, options, wanted))


def test_lists_that_overflow_give_way(monkeypatch):
    monkeypatch.setattr(cuda, "LONGEST_LIST", 32)
    options, wanted = entmax(1.5), Wanted(True, True, False, False)
    tensors = made(0.05, bias=False)
    with kernels_on():
        got = computed(tensors, options, wanted)
    assert_same(got, exact(tensors, options, wanted))


def in_bfloat16(tensors):
    return [*(tensor.bfloat16() for tensor in tensors[:2]), *tensors[2:]]


@pytest.mark.parametrize("name", ["alpha_relu", "entmax", "sparsemax capped"])
def test_listed_logits_of_bfloat16_are_made_exact(name, monkeypatch):
    """The product's rounding is gone: only that of the results is left."""
    monkeypatch.setattr(cuda, "SHARE", 1.0)  # lists, however long
    tensors = in_bfloat16(made(bias=True))
    options, wanted = CASES[name], Wanted(False, False, True, False)
    with kernels_on():
        got = computed(tensors, options, wanted)
    assert_same(got, exact(tensors, options, wanted), tolerance=1e-5)


@pytest.mark.parametrize("way", ["lists", "small"])
@pytest.mark.parametrize("name", ["alpha_relu smoothed", "entmax smoothed"])
def test_a_class_of_no_weight_may_be_ruled_out(name, way, monkeypatch):
    """Smoothing counts its share of 0 as nothing, not as 0 · ∞."""
    if way == "small":
        monkeypatch.setattr(cuda, "SMALL", 10**12)
    else:
        monkeypatch.setattr(cuda, "SHARE", 1.0)
    tensors = made(weighted=True)
    tensors[2][7], tensors[5][7] = -torch.inf, 0.0
    options, wanted = CASES[name], Wanted(True, True, True, False)
    with kernels_on():
        got = computed(tensors, options, wanted)
    assert_same(got, exact(tensors, options, wanted))


def test_sums_for_smoothing_beyond_float16():
    g = torch.Generator().manual_seed(0)
    matrix = torch.randn(40, 60, generator=g).half().to(DEVICE)
    vector = (1e6 * torch.randn(60, generator=g)).to(DEVICE)
    got, truth = cuda.times_vector(matrix, vector), matrix.double() @ vector.double()
    assert (got.double() - truth).norm() <= 1e-5 * truth.norm()


@pytest.mark.parametrize("way", ["lists", "small"])
@pytest.mark.parametrize("alpha", [1.0, 2.0])
def test_a_cap_far_away_changes_little(alpha, way, monkeypatch):
    if way == "small":
        monkeypatch.setattr(cuda, "SMALL", 10**12)
    tensors = made(bias=False)
    options, wanted = entmax(alpha, softcap=1e6), Wanted(True, True, False, False)
    with kernels_on():
        got = computed(tensors, options, wanted)
    assert_same(got, exact(tensors, options, wanted), tolerance=5e-6)


def test_a_row_that_is_no_number_lists_no_class_that_is_not_there(monkeypatch):
    listed = []
    collect = cuda.Lists.collect.__func__

    def watched(cls, head):
        found = collect(cls, head)
        if found is not None:
            kept = torch.arange(found.classes.shape[1], device=DEVICE) < found.counts[:, None]
            listed.append(found.classes[kept])
        return found

    monkeypatch.setattr(cuda.Lists, "collect", classmethod(watched))
    monkeypatch.setattr(cuda, "SHARE", 1.0)
    tensors = made(4.0, bias=False)
    tensors[1][:, 1] = 0.0
    tensors[0][:, 1] = 0.0
    tensors[1][150, 1], tensors[0][3, 1] = 3e38, 10.0  # one logit of one row is +∞
    with kernels_on():
        computed(tensors, entmax(1.5), Wanted(True, True, False, False))
    assert listed
    assert (torch.cat(listed) < CLASSES).all()


@pytest.mark.parametrize(
    ("name", "way"),
    [(name, "small") for name in CASES if "softmax" not in name]
    + [(name, "wide") for name in ("entmax smoothed capped", "sparsemax capped", "entmax 1.2")]
    + [(name, "many tiles") for name in ("alpha_relu", "entmax 3")],
)
def test_few_positive_logits_of_bfloat16_are_made_exact_in_whole_rows(
    name, way, monkeypatch, request
):
    """Losses as if logits had not been rounded; gradients are, to bfloat16, once."""
    monkeypatch.setattr(cuda, "SMALL", 10**12)
    if way != "small":
        request.getfixturevalue("wide_rows")
    if way == "many tiles":  # more than there are bits in a word
        monkeypatch.setattr(cuda, "block_size", lambda width, most: 4)
    options = CASES[name]
    tensors = in_bfloat16(made(bias="1.2" not in name, weighted="smoothed" in name))
    wanted = Wanted(True, True, tensors[2] is not None, options.fixed)
    with kernels_on():
        got = computed(tensors, options, wanted)
        alone = computed([*tensors[:6], None], options, NOTHING)
    expected = exact(tensors, options, wanted)
    smoothed = 3e-3 if options.label_smoothing else 1e-5  # Σz of all classes is as it was rounded
    for losses in (got.losses, alone.losses):
        torch.testing.assert_close(
            losses.double().cpu(), expected.losses, rtol=smoothed, atol=smoothed
        )
    assert_same(got._replace(losses=None), expected._replace(losses=None), tolerance=8e-3)


@pytest.mark.parametrize(
    "bias_dtype", [torch.float32, torch.bfloat16] if ON_GPU else [torch.float32]
)
@pytest.mark.parametrize("way", ["lists", "small", "wide", "dense"])
@pytest.mark.parametrize(
    "name", ["alpha_relu", "entmax", "sparsemax capped", "softmax"] if ON_GPU else ["entmax"]
)
def test_a_bias_that_cancels_large_products_costs_no_digits(
    name, way, bias_dtype, monkeypatch, request
):
    """Products near 64 are half a unit apart in bfloat16; their logits near 0 all differ."""
    if way == "lists":
        monkeypatch.setattr(cuda, "SHARE", 1.0)
    elif way != "dense":
        monkeypatch.setattr(cuda, "SMALL", 10**12)
    if way == "wide":
        request.getfixturevalue("wide_rows")
    options = CASES[name]
    if way == "dense":
        monkeypatch.setattr(cuda.Lists, "collect", classmethod(lambda cls, head: None))
        options = dataclasses.replace(options, float32_accumulation=True)
    wanted = Wanted(False, True, True, options.fixed)

    def errors(shift):
        """Of loss and gradients where every product is larger by shift, and every bias smaller."""
        tensors = made(0.2)
        tensors[0][:, 0], tensors[1][:, 0] = shift / 8, 8.0
        tensors[2] -= shift
        tensors[2][11], tensors[2][12] = -torch.inf, -1e9
        tensors = in_bfloat16(tensors)
        tensors[2] = tensors[2].to(bias_dtype)
        with kernels_on():
            got = computed(tensors, options, wanted)
        pairs = zip(got, exact(tensors, options, wanted), strict=True)
        return [
            float((mine.double().cpu() - truth).norm() / truth.norm())
            for mine, truth in pairs
            if truth is not None
        ]

    plain, cancelled = errors(0.0), errors(64.0)
    assert all(b <= 2 * a + 2**-8 for a, b in zip(plain, cancelled, strict=True)), (
        plain, cancelled,
    )  # fmt: skip


@pytest.mark.parametrize("classes", [3200, 3203])
@pytest.mark.parametrize("stride", [0, 16, 32])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_logits_are_rounded_once_with_their_bias(dtype, stride, classes, monkeypatch):
    monkeypatch.setattr(cuda, "ASIDE_BYTES", 20_000)  # a few rows at a time
    g = torch.Generator().manual_seed(0)
    x, w = torch.randn(40, 64, generator=g), torch.randn(classes, 64, generator=g) / 8
    bias = torch.randn(classes, generator=g) - 64.0
    x[:, 0], w[:, 0] = 8.0, 8.0
    x, w, bias = (tensor.to(DEVICE, dtype) for tensor in (x, w, bias))
    room = torch.empty(40, classes + stride, device=DEVICE, dtype=dtype)
    cuda.put_logits(room[:, :classes], x, w.t(), bias)
    exact = x.double() @ w.double().T + bias.double()
    errors = (room[:, :classes].double() - exact).abs()
    assert (errors <= 1.01 * torch.finfo(dtype).eps / 2 * exact.abs() + 1e-4).all()


@pytest.mark.parametrize(("longest", "wide"), [(2, False), (16, True)])
@pytest.mark.parametrize("name", ["alpha_relu", "entmax", "sparsemax capped"])
def test_rows_with_many_positive_logits_stay_as_they_are(name, longest, wide, monkeypatch, request):
    """Some rows have lists that are too long, and none is spoilt by another."""
    monkeypatch.setattr(cuda, "SMALL", 10**12)
    monkeypatch.setattr(cuda, "LONGEST_REFINED", longest)
    if wide:
        request.getfixturevalue("wide_rows")
    tensors = in_bfloat16(made(0.5, bias=False))
    tensors[0][::2] *= 0.05
    wanted = Wanted(True, True, False, False)
    with kernels_on():
        got = computed(tensors, CASES[name], wanted)
    assert_same(got, exact(tensors, CASES[name], wanted), tolerance=1e-2)


@pytest.mark.parametrize("features", [12, 40])
@pytest.mark.parametrize("name", [name for name in CASES if "relu" in name])
def test_slices_with_float32_logits_in_the_weights_gradient(name, features, monkeypatch):
    """As long as there is room behind them, then beside it: exact but for the results' rounding."""
    monkeypatch.setattr(cuda.Lists, "collect", classmethod(lambda cls, head: None))
    monkeypatch.setattr(cuda, "SPARE_STEP", 8)
    monkeypatch.setattr(cuda, "EXACT_FEATURES", 0)
    monkeypatch.setattr(cuda, "slice_width", lambda *sizes: 16)
    tensors = made(weighted="smoothed" in name)
    g = torch.Generator().manual_seed(1)
    tensors[0] = torch.randn(ROWS, features, generator=g).to(DEVICE)
    tensors[1] = torch.randn(CLASSES, features, generator=g).to(DEVICE)
    tensors, widths = in_bfloat16(tensors), []
    whole = cuda.Call.residual

    def seen(head, first, z, out):
        widths.append((z.shape[1], z.dtype))
        whole(head, first, z, out)

    monkeypatch.setattr(cuda.Call, "residual", seen)
    options, wanted = CASES[name], Wanted(True, True, True, True)
    with kernels_on():
        got = computed(tensors, options, wanted)
    assert {dtype for _, dtype in widths} == {torch.float32}
    assert sum(width for width, _ in widths) == CLASSES
    assert widths[0][0] > 16
    assert widths[-2][0] <= 16
    assert widths[-1][0] == CLASSES % 8
    expected = exact(tensors, options, wanted)
    torch.testing.assert_close(got.losses.double().cpu(), expected.losses, rtol=1e-5, atol=1e-5)
    assert_same(got, expected, tolerance=8e-3)


@pytest.mark.parametrize(("name", "blocks"), [("entmax", 3), ("softmax", 12)])
def test_sums_over_blocks_are_exact_where_there_is_room(name, blocks, monkeypatch):
    """The weight's gradient is rounded once or twice, and not with every block."""
    rows, options, wanted = 48, CASES[name], Wanted(True, True, False, False)
    monkeypatch.setattr(cuda.Lists, "collect", classmethod(lambda cls, head: None))
    monkeypatch.setattr(cuda, "block_rows", lambda rows, most: rows // blocks)
    monkeypatch.setattr(cuda, "ROUNDED_BLOCKS", {True: 2, False: 2})
    monkeypatch.setattr(cuda, "LONGEST_REFINED", 1)  # rounded logits, in both
    g = torch.Generator().manual_seed(0)
    tensors = in_bfloat16(made(0.05, bias=False))
    tensors[0] = torch.randn(rows, FEATURES, generator=g).bfloat16().to(DEVICE)
    tensors[4] = torch.randint(0, CLASSES, (rows,), generator=g).to(DEVICE)
    tensors[6] = torch.rand(rows, generator=g).to(DEVICE)
    truth = exact(tensors, options, wanted).weight
    errors = {}
    for room in (0, 1 << 30):
        monkeypatch.setattr(cuda, "BLOCK_BYTES", {True: room, False: room})
        with kernels_on():
            made_of_it = computed(tensors, options, wanted).weight
        errors[room] = float((made_of_it.double().cpu() - truth).norm() / truth.norm())
    # Triton's interpreter cuts off where a GPU rounds.
    assert errors[1 << 30] < (4.5e-3 if ON_GPU or blocks > 3 else 7e-3)
    if blocks > 3:
        assert errors[0] > 1.2 * errors[1 << 30]


@pytest.mark.parametrize("size", [1, 5000])
def test_several_tensors_are_added_up_with_one_rounding(size):
    from uncork.nn.kernels.ends import add

    g = torch.Generator().manual_seed(0)
    total, others = torch.randn(size, generator=g), torch.randn(3, size, generator=g)
    total, others = (tensor.bfloat16().to(DEVICE) for tensor in (total, others))
    expected = (total.double() + others.double().sum(0)).float().bfloat16()
    with kernels_on():
        add(total, others)
    torch.testing.assert_close(total, expected)


@pytest.mark.parametrize("second", [0, 5000])
@pytest.mark.parametrize("factor", [1.0, 0.3])
def test_two_gradients_are_scaled_at_once(factor, second):
    from uncork.nn.kernels.ends import scale

    values, others = torch.randn(4097, device=DEVICE), torch.randn(second, device=DEVICE)
    expected = values * factor, others * factor
    with kernels_on():
        scale(values, others if second else None, torch.tensor(factor, device=DEVICE))
    torch.testing.assert_close((values, others), expected)


@pytest.mark.parametrize("name", ["alpha_relu", "entmax", "softmax"])
def test_a_loss_alone(name):
    tensors, nothing = made(), NOTHING
    with kernels_on():
        got = compute(LinearTensors(*tensors[:6]), None, CASES[name], nothing)
    assert_same(got, exact([*tensors[:6], None], CASES[name], nothing))


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("name", ["alpha_relu", "entmax", "softmax"])
def test_a_nan_is_not_hidden(name, wide, request):
    if wide:
        request.getfixturevalue("wide_rows")
    tensors = made()
    tensors[0][1, 2] = torch.nan
    with kernels_on():
        got = computed(tensors, CASES[name], Wanted(True, True, False, False))
    assert got.losses[1].isnan()
    assert got.input[1].isnan().any()
    assert got.losses[[0, 3, 4]].isfinite().all()


@pytest.mark.parametrize("way", ["as it comes", "small"])
@pytest.mark.parametrize("name", ["alpha_relu", "entmax", "softmax"])
def test_a_class_that_is_not_there_spoils_its_row_alone(name, way, monkeypatch):
    """And nothing is read or written where it would be."""
    if way == "small":
        monkeypatch.setattr(cuda, "SMALL", 10**12)
    options = CASES[name]
    tensors, wanted = made(weighted=True), Wanted(True, True, False, False)
    expected = exact(tensors, options, wanted)
    tensors[4][1], tensors[4][3] = CLASSES, -7
    with kernels_on():
        got = computed(tensors, options, wanted)
    assert got.losses[[1, 3]].isnan().all()
    for mine, truth in ((got.losses, expected.losses), (got.input, expected.input)):
        torch.testing.assert_close(
            mine[[0, 2, 4]].double().cpu(), truth[[0, 2, 4]], rtol=1e-4, atol=1e-5
        )


@pytest.mark.parametrize(
    ("alpha", "way"),
    [(1.0, "small"), (1.0, "wide"), (1.0, "float32"), (2.0, "small"), (2.0, "lists")],
)
def test_all_classes_ruled_out(alpha, way, monkeypatch, request):
    if way == "small":
        monkeypatch.setattr(cuda, "SMALL", 10**12)
    elif way == "wide":
        request.getfixturevalue("wide_rows")
    options = entmax(alpha, float32_accumulation=True if way == "float32" else None)
    tensors, wanted = made(), Wanted(True, True, False, False)
    tensors[2] = torch.full_like(tensors[2], -torch.inf)
    with kernels_on():
        got = computed(tensors, options, wanted)
    for made_of_it in (got, exact(tensors, options, wanted)):
        assert made_of_it.losses.tolist() == [torch.inf, torch.inf, 0, torch.inf, torch.inf]
    assert_same(got._replace(losses=None), exact(tensors, options, wanted)._replace(losses=None))


@pytest.mark.parametrize("name", ["alpha_relu smoothed", "entmax", "softmax smoothed capped"])
def test_tensors_of_any_strides(name):
    """A column of labels, of offsets, of weights; one weight for all classes."""
    tensors, wanted = made(weighted=True), Wanted(True, True, True, False)
    columns = list(tensors)
    for place in (0, 1, 2, 4, 5, 6):
        columns[place] = torch.stack([torch.zeros_like(tensors[place]), tensors[place]], -1)[..., 1]
        assert not columns[place].is_contiguous()
    expanded = [*tensors[:5], torch.full((1,), 0.5, device=DEVICE).expand(CLASSES), tensors[6]]
    for given in (columns, expanded):
        with kernels_on():
            got = computed(given, CASES[name], wanted)
        assert_same(got, exact(given, CASES[name], wanted))


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_through_the_public_function(reduction):
    """Upstream factors, a second backward, and no gradient where none is asked for."""
    x, w, b, _, target, _, _ = made()
    x, w, b = (leaf.requires_grad_() for leaf in (x, w, b))
    with kernels_on():
        loss = F.linear_entmax_loss(x, w, target, linear_bias=b, reduction=reduction)
        upstream = torch.rand_like(loss)
        got = torch.autograd.grad(loss, (x, w, b), upstream, retain_graph=True)
        again = torch.autograd.grad(loss, (x, w), upstream)
    exact_x, exact_w, exact_b = (
        leaf.detach().double().cpu().requires_grad_() for leaf in (x, w, b)
    )
    z = torch.nn.functional.linear(exact_x, exact_w, exact_b)
    expected = F.entmax_loss(z, target.cpu(), reduction=reduction)
    truth = torch.autograd.grad(expected, (exact_x, exact_w, exact_b), upstream.double().cpu())
    torch.testing.assert_close(loss.double().cpu(), expected, rtol=1e-5, atol=1e-6)
    for mine, other in zip((*got, *again), (*truth, *truth[:2]), strict=True):
        torch.testing.assert_close(mine.double().cpu(), other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_losses_are_counted_and_added_up(reduction, weighted):
    """Of few rows by the kernels, of many by torch: the same."""
    x, w, _, _, target, class_weight, _ = made(weighted=weighted)
    options = {"weight": class_weight, "reduction": reduction, "tau": 0.4}
    with kernels_on():
        few = F.linear_alpha_relu_loss(x, w, target, **options)
        many = F.linear_alpha_relu_loss(x.double(), w.double(), target, **options)
        none = F.linear_alpha_relu_loss(x, w, torch.full_like(target, -100), **options)
    assert float(few) == pytest.approx(float(many), rel=1e-5)
    assert float(none) == 0 if reduction == "sum" else none.isnan()


def test_numbers_of_numpy_are_numbers():
    x, w, _, _, target, _, _ = made()
    plain = {"ignore_index": -100, "softcap": 3.0, "label_smoothing": 0.125}
    kinds = {"ignore_index": np.int64, "softcap": np.float32, "label_smoothing": np.float16}
    given = {name: kind(plain[name]) for name, kind in kinds.items()}
    with kernels_on():
        got = F.linear_entmax_loss(x, w, target, **given)
        assert torch.equal(got, F.linear_entmax_loss(x, w, target, **plain))


@pytest.mark.skipif(not ON_GPU, reason="needs a GPU")
@pytest.mark.parametrize("scale", [0.1, 0.3, 1.0, 4.0])
@pytest.mark.parametrize("small", [True, False])
@pytest.mark.parametrize(
    "name", ["alpha_relu", "alpha_relu dense", "entmax", "sparsemax", "softmax"]
)
def test_bfloat16_errors_are_at_most_twice_those_of_torchs_cross_entropy(
    name, small, scale, monkeypatch
):
    """Judged at a real size, against float64; the losses differ, so errors are relative."""
    monkeypatch.undo()
    if not small:
        monkeypatch.setattr(cuda, "SMALL", 0)  # the way of large problems
    torch.manual_seed(0)
    rows, classes, features = 2048, 32_003, 256
    x = torch.randn(rows, features, device="cuda", dtype=torch.bfloat16)
    w = (torch.randn(classes, features, device="cuda") * scale / 16).bfloat16()
    target = torch.randint(0, classes, (rows,), device="cuda")
    losses = {
        "alpha_relu": (F.linear_alpha_relu_loss, F.alpha_relu_loss, {"tau": 1.7 * scale}),
        "alpha_relu dense": (F.linear_alpha_relu_loss, F.alpha_relu_loss, {"tau": 0.0}),
        "entmax": (F.linear_entmax_loss, F.entmax_loss, {}),
        "sparsemax": (F.linear_sparsemax_loss, F.sparsemax_loss, {}),
        "softmax": (F.linear_cross_entropy, torch.nn.functional.cross_entropy, {}),
    }
    fused, unfused, options = losses[name]

    def errors(loss, exact_loss, **options):
        """Of value, input's and weight's gradient; and what rounding alone makes of the latter."""
        leaves = [leaf.detach().requires_grad_() for leaf in (x, w)]
        wide = [leaf.detach().double().requires_grad_() for leaf in (x, w)]
        value, truth = loss(*leaves), exact_loss(wide[0] @ wide[1].T, target, **options)
        made = (value.detach(), *torch.autograd.grad(value, leaves))
        exact_made = (truth.detach(), *torch.autograd.grad(truth, wide))
        rounded = (truth.detach(), *(gradient.bfloat16() for gradient in exact_made[1:]))
        return [
            [float((a.double() - b).norm() / b.norm()) for a, b in zip(of, exact_made, strict=True)]
            for of in (made, rounded)
        ]

    cross_entropy = torch.nn.functional.cross_entropy
    theirs, _ = errors(lambda a, b: cross_entropy(a @ b.T, target), cross_entropy)
    mine, least = errors(lambda a, b: fused(a, b, target, **options), unfused, **options)
    print(name, scale, "ours", mine, "torch", theirs, "rounding", least)
    # Cross entropy's gradient is mostly its targets', which bfloat16 holds exactly where logits
    # are flat: less than rounding any other gradient costs is not asked for.
    allowed = [2 * max(pair) for pair in zip(theirs, least, strict=True)]
    assert all(a <= most for a, most in zip(mine, allowed, strict=True)), (mine, allowed)


@pytest.mark.skipif(not ON_GPU, reason="needs a GPU")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch.compile's own
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["alpha_relu", "entmax", "softmax"])
def test_compiled_checkpointed_and_under_autocast(name, dtype, monkeypatch):
    """A body in front, weights in float32: as eagerly, and as the two steps one after the other."""
    monkeypatch.undo()
    losses = {
        "alpha_relu": (F.linear_alpha_relu_loss, F.alpha_relu_loss),
        "entmax": (F.linear_entmax_loss, F.entmax_loss),
        "softmax": (F.linear_cross_entropy, torch.nn.functional.cross_entropy),
    }
    fused, unfused = losses[name]
    torch.manual_seed(0)
    body, head = torch.nn.Linear(64, 64, device="cuda"), torch.nn.Linear(64, 5003, device="cuda")
    x = torch.randn(96, 64, device="cuda")
    target = torch.randint(0, 5003, (96,), device="cuda")
    leaves = [*body.parameters(), *head.parameters()]

    def together(x):
        with torch.autocast("cuda", dtype):
            return fused(body(x).tanh(), head.weight, target, linear_bias=head.bias)

    def one_after_the_other(x):
        with torch.autocast("cuda", dtype):
            return unfused(head(body(x).tanh()).float(), target)

    def checkpointed(x):
        return torch.utils.checkpoint.checkpoint(together, x, use_reentrant=False)

    expected = one_after_the_other(x)
    truth = torch.autograd.grad(expected * 1024, leaves)
    for way in (together, torch.compile(together, fullgraph=True), checkpointed):
        loss = way(x)
        torch.testing.assert_close(loss, expected.float(), rtol=5e-3, atol=1e-4)
        for mine, other in zip(torch.autograd.grad(loss * 1024, leaves), truth, strict=True):
            assert (mine - other).norm() <= 0.03 * other.norm()


@pytest.mark.parametrize("way", ["as it comes", "dense", "float32", "small"])
@pytest.mark.parametrize("name", ["softmax", "entmax", "alpha_relu", "softmax smoothed capped"])
@pytest.mark.slow
def test_lse_z_loss_and_predictions_equal_the_twin(name, way, monkeypatch):
    options = dataclasses.replace(
        CASES[name], z_loss=0.2, lse=True, predictions=True, float32_accumulation=way == "float32"
    )
    tensors = made()
    wanted = Wanted(True, True, True, options.fixed)
    if way == "small":
        monkeypatch.setattr(cuda, "SMALL", 10**12)
    elif way != "as it comes":
        monkeypatch.setattr(cuda.Lists, "collect", classmethod(lambda cls, head: None))
    extra = torch.linspace(-1, 1, ROWS, device=DEVICE)
    with kernels_on():
        got = compute(LinearTensors(*tensors[:6]), tensors[6], options, wanted, extra=extra)
    wide = [t if t is None or not t.is_floating_point() else t.double().cpu() for t in tensors]
    wide[4] = wide[4].cpu()
    expected = torch_blocks.compute(
        LinearTensors(*wide[:6]), wide[6], options, wanted, extra.double().cpu()
    )
    assert torch.equal(got.predicted.cpu(), expected.predicted)
    assert_same(got._replace(predicted=None), expected._replace(predicted=None))
