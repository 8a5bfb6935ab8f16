"""Output heads: distributions, losses with gradients, decisions, without the full matrix."""

import math

import pytest

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import uncork.nn as unn  # noqa: E402
import uncork.nn.functional as F  # noqa: E402
from uncork import UncorkError  # noqa: E402
from uncork.nn import kernels  # noqa: E402
from uncork.nn.heads import HEADS, chunks  # noqa: E402

from .small_output_heads import LIKELIHOOD, MIXTURES, SPARSE, batch, made  # noqa: E402


@pytest.fixture
def tiny_blocks(monkeypatch):
    """One or two rows a block."""
    monkeypatch.setattr(chunks, "ON_CPU", 60)
    monkeypatch.setattr("uncork.nn.linear.mixture.ON_CPU", 60)
    monkeypatch.setattr("uncork.nn.linear.gated.ON_CPU", 60)


@pytest.mark.parametrize("name", HEADS)
def test_probabilities_are_a_distribution(name):
    hidden, _ = batch(6)
    made_of = made(name).log_probabilities(hidden.reshape(2, 3, 4))
    assert made_of.shape == (2, 3, 7)
    torch.testing.assert_close(made_of.exp().sum(-1), torch.ones(2, 3, dtype=torch.float64))
    assert bool((made_of == -torch.inf).any()) == (name in SPARSE)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"reduction": "sum"},
        {"reduction": "none"},
        {"label_smoothing": 0.2},
        {"weight": True},
        {"weight": True, "label_smoothing": 0.2, "ignore_index": 3},
    ],
    ids=lambda options: " ".join(options) or "plain",
)
@pytest.mark.parametrize("name", LIKELIHOOD)
def test_the_loss_is_cross_entropy_of_the_probabilities(name, options, tiny_blocks):
    head = made(name)
    hidden, target = batch()
    target[1] = options.get("ignore_index", -100)
    weight = torch.rand(7, dtype=torch.float64) if options.get("weight") else None
    options = options | {"weight": weight}
    leaves = [hidden, *head.parameters()]
    expected = torch.nn.functional.cross_entropy(head.log_probabilities(hidden), target, **options)
    truth = torch.autograd.grad(expected.sum(), leaves, allow_unused=True)
    got = head.loss(hidden, target, **options)
    torch.testing.assert_close(got, expected)
    gradients = torch.autograd.grad(got.sum(), leaves, allow_unused=True)
    torch.testing.assert_close(gradients, truth)


@pytest.mark.parametrize("name", SPARSE)
def test_sparse_heads_have_the_losses_of_their_logits(name):
    head = made(name)
    hidden, target = batch()
    logits = torch.nn.functional.linear(hidden, head.weight, head.bias)
    expected = {
        "entmax": lambda: F.entmax_loss(logits, target, alpha=1.5, label_smoothing=0.1),
        "sparsemax": lambda: F.sparsemax_loss(logits, target, label_smoothing=0.1),
        "normmax": lambda: F.normmax_loss(logits, target, label_smoothing=0.1),
        "alpha-relu": lambda: F.alpha_relu_loss(
            logits, target, alpha=1.5, tau=-0.3, label_smoothing=0.1
        ),
    }[name]()
    torch.testing.assert_close(head.loss(hidden, target, label_smoothing=0.1), expected)


@pytest.mark.parametrize("name", HEADS)
def test_gradients_are_those_of_finite_differences(name, tiny_blocks):
    small = {"components": 2, "gate_features": 1, "frequent": 2} if name == "mixtape" else {}
    head = made(name, 2, 4, **small)
    hidden, target = batch(2, 2, 4)
    names = [key for key, _ in head.named_parameters()]

    def called(method, hidden, *values):
        return torch.func.functional_call(
            _Method(head, method),
            {f"head.{key}": value for key, value in zip(names, values, strict=True)},
            (hidden, target),
        )

    leaves = (hidden, *head.parameters())
    assert torch.autograd.gradcheck(lambda *given: called("loss", *given), leaves)
    assert torch.autograd.gradcheck(lambda *given: called("log", *given), leaves)


class _Method(torch.nn.Module):
    def __init__(self, head, method):
        super().__init__()
        self.head, self.method = head, method

    def forward(self, hidden, target):
        if self.method == "loss":
            return self.head.loss(hidden, target, label_smoothing=0.1)
        values = self.head.log_probabilities(hidden)
        return torch.where(values == -torch.inf, torch.zeros_like(values), values)


@pytest.mark.parametrize("name", ["mos", "sigsoftmax"])
def test_second_derivatives_are_right(name):
    head = made(name, 2, 4)
    hidden, target = batch(2, 2, 4)
    assert torch.autograd.gradgradcheck(lambda rows: head.loss(rows, target), hidden)


@pytest.mark.parametrize("name", LIKELIHOOD)
def test_backward_twice_gives_the_same(name):
    head = made(name)
    hidden, target = batch()
    loss = 2 * head.loss(hidden, target)
    first = torch.autograd.grad(loss, hidden, retain_graph=True)[0].clone()
    torch.testing.assert_close(torch.autograd.grad(loss, hidden)[0], first)


class LargestTensor(TorchDispatchMode):
    """The most numbers that any operation's result had."""

    most = 0

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        result = function(*arguments, **(keywords or {}))
        for one in result if isinstance(result, tuple | list) else [result]:
            if isinstance(one, torch.Tensor):
                self.most = max(self.most, one.numel())
        return result


@pytest.mark.parametrize("name", HEADS)
def test_no_tensor_of_rows_times_classes_is_made(name, monkeypatch):
    from uncork.nn.linear import blocks, gated, mixture

    monkeypatch.setattr(chunks, "ON_CPU", 3000)
    monkeypatch.setattr(mixture, "ON_CPU", 3000)
    monkeypatch.setattr(gated, "ON_CPU", 3000)
    monkeypatch.setattr(blocks, "BLOCK_ELEMENTS", 3000)
    rows, classes = 64, 100
    head = made(name, 4, classes, components=2) if name in MIXTURES else made(name, 4, classes)
    hidden, target = batch(rows, 4, classes)
    with LargestTensor() as watch:
        head.loss(hidden, target).backward()
        head.argmax(hidden), head.top_k(hidden, 3), head.sample(hidden)
    assert 500 < watch.most <= 3200


@pytest.mark.parametrize("name", HEADS)
def test_a_loss_without_values_has_its_shapes(name):
    head = made(name).to("meta")
    hidden, target = (one.detach().to("meta") for one in batch())
    loss = head.loss(hidden, target)
    assert loss.is_meta
    loss.backward()
    assert head.loss(hidden, target, reduction="none").shape == target.shape


@pytest.mark.parametrize("name", HEADS)
def test_rows_of_another_size_are_a_mixture_s(name):
    if HEADS[name].takes_embedding:
        assert HEADS[name](6, 9, embedding=4).weight.shape == (9, 4)
        return
    with pytest.raises(UncorkError, match="as long as its features, 6, got embedding=4"):
        HEADS[name](6, 9, embedding=4)


def test_a_mixture_of_one_is_a_softmax():
    head = made("mos", components=1, activation="identity")
    with torch.no_grad():
        head.contexts.projection.weight.copy_(torch.eye(4))
        head.contexts.projection.bias.zero_()
    plain = unn.heads.SoftmaxHead(4, 7, weight=head.weight, dtype=torch.float64)
    plain.bias = head.bias
    hidden, target = batch()
    torch.testing.assert_close(head.log_probabilities(hidden), plain.log_probabilities(hidden))
    torch.testing.assert_close(head.loss(hidden, target), plain.loss(hidden, target))
    bent = made("mos", components=1)  # with its tanh: a softmax of that
    rows = torch.tanh(bent.contexts.projection(hidden))
    logits = torch.nn.functional.linear(rows, bent.weight, bent.bias)
    torch.testing.assert_close(bent.log_probabilities(hidden), torch.log_softmax(logits, -1))


@pytest.mark.parametrize("name", HEADS)
def test_bfloat16_sums_to_one_over_128_000_classes(name):
    torch.manual_seed(0)
    options = {"components": 2} if name in (*MIXTURES, "mixtape") else {}
    head = HEADS[name](8, 128_000, dtype=torch.bfloat16, **options)
    with torch.no_grad():
        next(head.parameters()).mul_(20)  # far from flat
    values = head.log_probabilities(torch.randn(2, 8, dtype=torch.bfloat16))
    assert values.dtype == torch.float32
    torch.testing.assert_close(values.exp().sum(-1), torch.ones(2), atol=1e-4, rtol=0)


def test_hopeless_targets_have_a_finite_loss_and_a_gradient():
    """Probabilities of exp(−2000) are mixed as logarithms: nothing is added to keep them alive."""
    head = made("mos", dtype=torch.float32)
    with torch.no_grad():
        head.weight.mul_(2000)
    hidden, target = batch(dtype=torch.float32)
    loss = head.loss(hidden, target)
    assert 200 < loss.item() < math.inf
    assert bool(torch.isfinite(torch.autograd.grad(loss, hidden)[0]).all())
    exact = head.double().loss(hidden.double(), target)
    torch.testing.assert_close(loss.double(), exact, rtol=1e-5, atol=0)


@pytest.mark.parametrize("name", HEADS)
def test_decisions_follow_the_probabilities(name, monkeypatch):
    monkeypatch.setattr(chunks, "ON_CPU", 20)  # two rows a block
    head = made(name)
    hidden, _ = batch(6)
    shaped = hidden.reshape(2, 3, 4)
    values = head.log_probabilities(shaped)
    torch.testing.assert_close(head.argmax(shaped), values.argmax(-1))
    best = head.top_k(shaped, 3)
    torch.testing.assert_close(best.values, values.topk(3, -1).values)
    torch.testing.assert_close(values.gather(-1, best.indices), best.values)
    monkeypatch.setattr(chunks, "ON_CPU", 7 * 1500)
    one = hidden[:1].expand(4000, -1)
    drawn = head.sample(one, generator=torch.Generator().manual_seed(0))
    again = head.sample(one, generator=torch.Generator().manual_seed(0))
    assert torch.equal(drawn, again)
    shares = torch.bincount(drawn, minlength=7) / len(drawn)
    torch.testing.assert_close(shares, values[0, 0].exp().float(), atol=0.03, rtol=0)


@pytest.mark.filterwarnings("ignore")  # torch's own, while it compiles
@pytest.mark.parametrize("name", ["mos", "plif", "entmax", "argmaxable"])
def test_compiled_it_gives_the_same(name, tiny_blocks):
    torch._dynamo.reset()
    head = made(name)
    hidden, target = batch()

    def loss(rows):
        return head.loss(rows * 2, target).square()

    compiled = torch.compile(loss, backend="eager")
    leaves = [hidden, *head.parameters()]
    torch.testing.assert_close(compiled(hidden), loss(hidden))
    got = torch.autograd.grad(compiled(hidden), leaves)
    torch.testing.assert_close(got, torch.autograd.grad(loss(hidden), leaves))
    scores = torch.compile(head, fullgraph=True, backend="eager")
    torch.testing.assert_close(scores(hidden), head(hidden))


@pytest.mark.parametrize("name", HEADS)
def test_under_autocast_and_in_bfloat16_the_loss_is_near(name):
    head = made(name, 16, 50, dtype=torch.float32)
    hidden, target = batch(8, 16, 50, dtype=torch.float32)
    exact = head.loss(hidden, target)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = head.loss(hidden, target)
    assert mixed.dtype == torch.float32
    torch.testing.assert_close(mixed, exact, rtol=0.02, atol=0.02)
    truth = torch.autograd.grad(exact, hidden)[0]
    error = (torch.autograd.grad(mixed, hidden)[0] - truth).norm() / truth.norm()
    assert float(error) < 0.05
    narrow = head.bfloat16().loss(hidden.bfloat16(), target)
    torch.testing.assert_close(narrow, exact, rtol=0.02, atol=0.02)


@pytest.mark.skipif(
    not torch.cuda.is_available() and not kernels._HAS_TRITON, reason="needs Triton"
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_by_the_kernels_the_mixture_is_the_same():
    head = made("mos", 4, 33, dtype=torch.float32)
    hidden, target = batch(5, 4, 33, dtype=torch.float32)
    expected = head.loss(hidden, target)
    truth = torch.autograd.grad(expected, [hidden, head.weight])
    if torch.cuda.is_available():
        head, hidden, target = head.cuda(), hidden.cuda(), target.cuda()
        got = head.loss(hidden, target)
        gradients = torch.autograd.grad(got, [hidden, head.weight])
    else:
        with kernels.interpreted():
            got = head.loss(hidden, target)
            gradients = torch.autograd.grad(got, [hidden, head.weight])
    torch.testing.assert_close(got.cpu(), expected)
    for one, other in zip(gradients, truth, strict=True):
        torch.testing.assert_close(one.cpu(), other, rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_mixture_of_ten_trains_in_one_and_a_half_softmaxes_memory():
    def most(loss):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated()
        loss().backward()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - held

    settings = {"device": "cuda", "dtype": torch.bfloat16}
    plain = unn.heads.SoftmaxHead(512, 50_000, **settings)
    mixture = unn.heads.MixtureOfSoftmaxes(512, 50_000, components=10, **settings)
    hidden = torch.randn(4096, 512, requires_grad=True, **settings)
    target = torch.randint(0, 50_000, (4096,), device="cuda")
    mixture.loss(hidden[:8], target[:8])  # compiles its kernels
    torch_s = most(lambda: torch.nn.functional.cross_entropy(plain(hidden), target))
    assert most(lambda: mixture.loss(hidden, target)) < 1.5 * torch_s


@pytest.mark.parametrize("name", HEADS)
def test_a_head_made_without_memory_is_a_new_one_once_it_is_reset(name):
    """As sharded training makes models: on "meta", then `to_empty`, then `reset_parameters`."""
    new, late = HEADS[name](8, 30), HEADS[name](8, 30, device="meta").to_empty(device="cpu")
    for tensor in (*late.parameters(), *late.buffers()):
        tensor.data.fill_(77)
    for module in late.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    assert not any((tensor == 77).any() for tensor in late.state_dict().values())
    for own, other in zip(late.buffers(), new.buffers(), strict=True):
        assert torch.equal(own, other)
