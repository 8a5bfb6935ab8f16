"""docs/contributing, "how to add a loss", followed: every form follows from one specification."""

import importlib
import inspect
import pickle
import sys

import pytest

torch = pytest.importorskip("torch")

import uncork.nn as unn  # noqa: E402
import uncork.nn.functional as F  # noqa: E402
from uncork.nn import heads, hf  # noqa: E402
from uncork.nn.losses import LOSSES, functions, modules, specification, stubs  # noqa: E402

# The file a developer would write: sparsemax of scaled logits, Ω*(z) = t · max_p ⟨z/t, p⟩ − ½‖p‖².
FILE = '''
# [docs: begin]
"""Sparsemax at a temperature: p = sparsemax(z / t)."""

from dataclasses import dataclass

import torch

from uncork.nn.losses import Family, Loss, Option, register
from uncork.nn.transforms.entmax import entmax_vjp, sparsemax


@dataclass(frozen=True)
class ScaledSparsemaxFamily(Family):
    """Ω = t/2 (‖p‖² − 1) on the simplex."""

    def predict(self, z, parameters):
        (temperature,) = parameters
        return sparsemax(z / temperature)

    def conjugate(self, v, p, parameters):
        (temperature,) = parameters
        finite = torch.where(p > 0, v, torch.zeros_like(v))
        squares = (p * p).sum(-1, keepdim=True)
        return (p * finite).sum(-1, keepdim=True) + temperature / 2 * (1 - squares)

    def vjp(self, p, grad, parameters):
        (temperature,) = parameters
        return entmax_vjp(p, grad, 2.0) / temperature


register(
    Loss(
        "scaled_sparsemax",
        ScaledSparsemaxFamily(),
        (Option("temperature", 2.0, "flattens the outputs.", above=0.0, learnable=False),),
        "ℓ(z; y) = (p − e_y)·z + t/2 (1 − ‖p‖²) with p = sparsemax(z / t).",
    )
)
# [docs: end]
'''


@pytest.fixture(scope="module")
def new_loss(tmp_path_factory):
    """The file above, imported from a folder of its own; forgotten afterwards."""
    folder = tmp_path_factory.mktemp("package")
    (folder / "scaled_sparsemax.py").write_text(FILE, encoding="utf-8")
    sys.path.insert(0, str(folder))
    importlib.import_module("scaled_sparsemax")  # in `uncork.nn.losses` the one line does this
    yield LOSSES["scaled_sparsemax"]
    sys.path.remove(str(folder))
    del sys.modules["scaled_sparsemax"], LOSSES["scaled_sparsemax"]
    del heads.HEADS["scaled-sparsemax"]
    for module in (functions, modules, heads.of_losses):
        for name in [name for name in module.__all__ if "scaled" in name.lower()]:
            module.__all__.remove(name)
            delattr(module, name)


def by_hand(z, y, temperature=2.0):
    """The definition, differentiated by autograd: max over p is attained at a constant p."""
    p = F.sparsemax(z / temperature).detach()
    value = (p * z).sum(-1) + temperature / 2 * (1 - p.square().sum(-1))
    return (value - z.gather(-1, y[:, None]).squeeze(-1)).mean()


@pytest.fixture
def layer():
    g = torch.Generator().manual_seed(0)
    hidden, weight, bias = (
        torch.randn(shape, generator=g, dtype=torch.float64, requires_grad=True)
        for shape in ((5, 3), (7, 3), (7,))
    )
    return hidden, weight, bias, torch.tensor([0, 6, 2, 2, 5])


def test_every_form_exists_and_gives_the_same_loss(new_loss, layer):
    hidden, weight, bias, y = layer
    z = torch.nn.functional.linear(hidden, weight, bias)
    head = heads.ScaledSparsemaxHead(3, 7, weight=torch.nn.Parameter(weight.detach()))
    with torch.no_grad():
        head.bias.copy_(bias)
    expected = by_hand(z, y)
    for value in (
        F.scaled_sparsemax_loss(z, y),
        unn.ScaledSparsemaxLoss()(z, y),
        F.linear_scaled_sparsemax_loss(hidden, weight, y, linear_bias=bias),
        unn.LinearScaledSparsemaxLoss()(hidden, weight, y, bias),
        head.loss(hidden, y),
        hf.masked_lm_loss("scaled_sparsemax")(z, y),
    ):
        torch.testing.assert_close(value, expected)
    flat = F.scaled_sparsemax_loss(z, y, temperature=5.0)
    torch.testing.assert_close(flat, by_hand(z, y, 5.0))
    torch.testing.assert_close(unn.LinearScaledSparsemaxLoss(5.0)(hidden, weight, y, bias), flat)


def test_its_gradients_are_those_of_finite_differences(new_loss, layer):
    hidden, weight, bias, y = layer
    z = torch.nn.functional.linear(hidden, weight, bias).detach().requires_grad_()
    torch.testing.assert_close(
        torch.autograd.grad(F.scaled_sparsemax_loss(z, y), z),
        torch.autograd.grad(by_hand(z, y), z),
    )
    assert torch.autograd.gradcheck(lambda z: F.scaled_sparsemax_loss(z, y), z)
    assert torch.autograd.gradgradcheck(lambda z: F.scaled_sparsemax_loss(z, y), z)

    def linear(hidden, weight, bias):
        return F.linear_scaled_sparsemax_loss(
            hidden, weight, y, linear_bias=bias, label_smoothing=0.1, softcap=3.0
        )

    assert torch.autograd.gradcheck(linear, (hidden, weight, bias))
    assert torch.autograd.gradgradcheck(linear, (hidden, weight, bias))


def test_every_form_has_its_signature_and_words(new_loss):
    def parameters(form):
        return {one.name: one.default for one in inspect.signature(form).parameters.values()}

    common = {"weight": None, "ignore_index": -100, "reduction": "mean", "label_smoothing": 0.0}
    own = {"temperature": 2.0}
    assert parameters(F.scaled_sparsemax_loss).items() >= (own | common).items()
    assert parameters(unn.ScaledSparsemaxLoss) == own | common
    assert parameters(F.linear_scaled_sparsemax_loss).items() >= (own | common).items()
    assert parameters(unn.LinearScaledSparsemaxLoss).items() >= (own | common).items()
    assert parameters(heads.ScaledSparsemaxHead).items() >= own.items()
    for form in (
        F.scaled_sparsemax_loss, F.linear_scaled_sparsemax_loss, unn.ScaledSparsemaxLoss,
        unn.LinearScaledSparsemaxLoss, heads.ScaledSparsemaxHead,
    ):  # fmt: skip
        assert "sparsemax" in form.__doc__
    with pytest.raises(TypeError, match="temprature"):
        F.scaled_sparsemax_loss(torch.zeros(7), torch.tensor(0), temprature=1.0)
    with pytest.raises(unn.heads.base.UncorkError, match="temperature must be finite and > 0"):
        unn.ScaledSparsemaxLoss(0.0)


def test_a_type_checker_would_read_the_same(new_loss):
    written = stubs.stubs([new_loss])
    text = "".join(written.values())
    for form in (
        "def scaled_sparsemax_loss(", "def linear_scaled_sparsemax_loss(",
        "class ScaledSparsemaxLoss(", "class LinearScaledSparsemaxLoss(",
        "class ScaledSparsemaxHead(",
    ):  # fmt: skip
        assert form in text
    assert text.count("temperature: float = 2.0") == 7  # the linear function has three signatures
    for stub in written.values():
        compile(stub, "stub", "exec")


def test_it_is_copied_pickled_saved_and_made_again(new_loss, layer):
    hidden, _, _, y = layer
    head = heads.make({"name": "scaled-sparsemax", "features": 3, "classes": 7, "temperature": 3})
    described = heads.describe(head)
    assert described["temperature"] == 3.0
    again = heads.make(described)
    again.load_state_dict(head.state_dict())
    rows = hidden.detach().float()
    torch.testing.assert_close(again.loss(rows, y), head.loss(rows, y))
    torch.testing.assert_close(head.log_probabilities(rows).exp().sum(-1), torch.ones(5))
    for made in (head, unn.ScaledSparsemaxLoss(3.0), F.scaled_sparsemax_loss):
        assert type(pickle.loads(pickle.dumps(made))) is type(made)


@pytest.mark.filterwarnings("ignore")  # torch's own, while it compiles
def test_compiled_it_gives_the_same(new_loss, layer):
    torch._dynamo.reset()
    hidden, weight, bias, y = layer

    def loss(hidden):
        return F.linear_scaled_sparsemax_loss(hidden * 2, weight, y, linear_bias=bias)

    compiled = torch.compile(loss, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(hidden), loss(hidden))
    torch.testing.assert_close(
        torch.autograd.grad(compiled(hidden), hidden), torch.autograd.grad(loss(hidden), hidden)
    )


def test_two_losses_of_one_name_are_refused(new_loss):
    with pytest.raises(unn.heads.base.UncorkError, match="scaled_sparsemax"):
        specification.register(new_loss)


def test_the_stubs_are_those_of_the_specifications():
    """`python -m uncork.nn.losses.stubs` writes them."""
    registered = [loss for loss in LOSSES.values() if "scaled" not in loss.name]
    for path, text in stubs.stubs(registered).items():
        assert path.read_text(encoding="utf-8") == text, path
