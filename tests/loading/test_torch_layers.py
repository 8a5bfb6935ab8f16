"""Live torch modules: where a domain is claimed nothing else arrives, and else a layer is named."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from small_models import make
from torch import nn
from torch.nn.utils import prune

from uncork.domain import Box, LayerNorm, RMSNorm
from uncork.loading import AmbiguousError, find

GENERATOR = np.random.default_rng(0)


def arriving(model: nn.Module, head: nn.Module, x: torch.Tensor) -> np.ndarray:
    """What the model really gives its head, one input a row."""
    seen: list[torch.Tensor] = []
    handle = head.register_forward_pre_hook(lambda _, given: seen.append(given[0].detach()))
    with torch.no_grad():
        model(x)
    handle.remove()
    return seen[-1].double().reshape(-1, seen[-1].shape[-1]).numpy()


def nothing_is_known(model: nn.Module, layer: str, **options: Any) -> None:
    """No domain is claimed, and the layer that stopped the search is named."""
    found = find(model, domain="auto", **options)
    assert found.shown_domain is None
    assert layer in found.domain_from
    assert found.head.domain == Box(100)


def linear(rows: int = 8, columns: int = 8) -> nn.Linear:
    return nn.Linear(columns, rows)


class Negated(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return -x


class ReLU(nn.Module):
    """A namesake of torch's own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return -nn.functional.relu(x)


class Leaky(nn.ReLU):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.leaky_relu(x)


def test_a_module_that_runs_twice_counts_twice() -> None:
    again = linear()
    model = nn.Sequential(again, nn.ReLU(), again, linear(5))
    assert arriving(model, model[3], torch.randn(50, 8)).min() < 0
    nothing_is_known(model, "Linear 2")
    shared = nn.ReLU()
    model = nn.Sequential(linear(), shared, linear(), shared, linear(5))
    assert find(model, domain="auto").head.domain == Box(0, np.inf)
    assert find(nn.Sequential(again, nn.Tanh(), again), domain="auto").weight_name == "2.weight"


@pytest.mark.parametrize("where", [0, 1, 2, None])
@pytest.mark.parametrize("kind", ["hook", "pre-hook"])
def test_hooks_on_the_way_end_the_search(where: int | None, kind: str) -> None:
    model = nn.Sequential(linear(), nn.ReLU(), linear(5))
    module = model if where is None else model[where]
    if kind == "hook":
        module.register_forward_hook(lambda _, given, result: -result)
    else:
        module.register_forward_pre_hook(lambda _, given: (-given[0],))
    if where == 0:  # what comes before the activation is any number in any case
        assert find(model, domain="auto").head.domain == Box(0, np.inf)
    else:
        nothing_is_known(model, "it has hooks")
    doubts = find(model).contents.choose().doubts
    assert bool(doubts) == (where in (2, None))


def test_hooks_on_every_module_end_the_search() -> None:
    model = nn.Sequential(linear(), nn.ReLU(), linear(5))
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        nothing_is_known(model, "hooks run on every torch module")
        nothing_is_known(deepcopy(make("GPT2LMHeadModel").model), "hooks run on every torch module")
    finally:
        handle.remove()


def test_a_patched_forward_ends_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(linear(), nn.ReLU(), linear(5))
    model[1].forward = lambda x: -x
    nothing_is_known(model, "ReLU 1: its forward was replaced")
    model = nn.Sequential(linear(), nn.ReLU(), linear(5))
    with monkeypatch.context() as patch:
        patch.setattr(nn.ReLU, "forward", lambda self, x: -x)
        nothing_is_known(model, "ReLU 1: forward of its class was replaced")
    assert find(model, domain="auto").head.domain == Box(0, np.inf)


def test_a_parent_may_bypass_its_sequence() -> None:
    class Bypassing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(linear(), nn.ReLU(), linear(5))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.body[2](self.body[0](x))

    model = Bypassing()
    assert arriving(model, model.body[2], torch.randn(50, 8)).min() < 0
    nothing_is_known(model, "Bypassing has a forward of its own", weight="body.2.weight")

    class Reordered(nn.Sequential):
        pass

    model = nn.Sequential(Reordered(linear(), nn.ReLU()), linear(5))
    nothing_is_known(model, "Reordered 0: its class", weight="1.weight")


def test_pruned_and_reparametrised_norms_end_the_search() -> None:
    model = nn.Sequential(linear(), nn.LayerNorm(8), linear(5))
    with torch.no_grad():
        model[1].weight.uniform_(2, 4)
    prune.l1_unstructured(model[1], "weight", 3)
    nothing_is_known(model, "LayerNorm 1: it has hooks")
    model = nn.Sequential(linear(), nn.LayerNorm(8), linear(5))
    nn.utils.parametrize.register_parametrization(model[1], "weight", Negated())
    nothing_is_known(model, "LayerNorm 1: its class torch.nn.utils.parametrize")


@pytest.mark.parametrize(
    "between",
    [
        nn.AvgPool1d(3, stride=1, padding=1), nn.AdaptiveAvgPool1d(8), nn.MaxPool1d(1),
        nn.Unflatten(1, (2, 2)), nn.Dropout(), nn.Flatten(),
    ],
)  # fmt: skip
def test_what_mixes_the_features_of_a_norm_ends_the_search(between: nn.Module) -> None:
    model = nn.Sequential(linear(), nn.LayerNorm(8), between, linear(5)).train()
    nothing_is_known(model, type(between).__name__)
    nothing_is_known(nn.Sequential(nn.LayerNorm(8), nn.Conv2d(8, 5, 1)), "Conv2d 1")


def test_namesakes_and_subclasses_are_not_torchs_own() -> None:
    for other in (ReLU(), Leaky()):
        nothing_is_known(nn.Sequential(linear(), other, linear(5)), f"{type(other).__name__} 1")

    class Linear(nn.Module):
        """The same tensors, used another way."""

        def __init__(self) -> None:
            super().__init__()
            self.weight, self.bias = nn.Parameter(torch.randn(5, 8)), nn.Parameter(torch.randn(5))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return -(x @ self.weight.T) + self.bias

    with pytest.raises(AmbiguousError, match="not a plain torch"):
        find(nn.Sequential(linear(), Linear()))


def test_dropout_in_training_mode_widens_the_range() -> None:
    model = nn.Sequential(linear(), nn.Tanh(), nn.Dropout(0.5), linear(5))
    hidden = arriving(model, model[3], 20 * torch.randn(50, 8))
    assert np.abs(hidden).max() > 1.9
    assert find(model, domain="auto").head.domain.contains(hidden).all()
    assert find(model.eval(), domain="auto").head.domain.upper < 1.001
    model = nn.Sequential(linear(), nn.SELU(), nn.AlphaDropout(0.5), linear(5))
    nothing_is_known(model, "AlphaDropout 2 is in training mode")


CASES: dict[str, tuple[Any, tuple[int, ...], Any]] = {
    "a range beside zero, averaged with padding": (
        lambda: nn.Sequential(nn.Hardtanh(1.0, 2.0), nn.AvgPool1d(3, 1, padding=1), linear(5)),
        (8,), (0, 2),
    ),
    "a convolution that pads": (
        lambda: nn.Sequential(nn.Hardtanh(1.0, 2.0), nn.Conv2d(8, 5, 1, padding=1)),
        (8, 3, 3), (0, 2),
    ),
    "a divisor of its own": (
        lambda: nn.Sequential(
            nn.ReLU6(), nn.AvgPool2d(2, divisor_override=1), nn.Flatten(), linear(5)
        ),
        (2, 4, 4), "AvgPool2d 1",
    ),
    "a dilated maximum": (
        lambda: nn.Sequential(nn.ReLU6(), nn.MaxPool1d(2, 1, 1, dilation=2), linear(5, 6)),
        (6,), "MaxPool1d 1",
    ),
    "a bound that its type rounds": (
        lambda: nn.Sequential(nn.Hardtanh(-0.1, 0.7), linear(5)), (8,), (-0.1, 0.7),
    ),
    "softplus upside down": (
        lambda: nn.Sequential(nn.Softplus(beta=-1.0), linear(5)), (8,), "Softplus 0",
    ),
    "ELU upside down": (lambda: nn.Sequential(nn.ELU(-2.0), linear(5)), (8,), "ELU 0"),
    "softmax along any axis": (
        lambda: nn.Sequential(nn.Softmax(dim=0), linear(5)), (8,), (0, 1),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_settings_of_a_module_count(name: str) -> None:
    build, shape, expected = CASES[name]
    model = build()
    if isinstance(expected, str):
        nothing_is_known(model, expected)
        return
    found = find(model, domain="auto").head.domain
    np.testing.assert_allclose((found.lower, found.upper), expected, rtol=1e-5)
    if isinstance(model[-1], nn.Linear):
        assert found.contains(arriving(model, model[-1], 30 * torch.randn(64, *shape))).all()


def test_what_float32_and_bfloat16_make_of_a_minimum_lies_in_the_domain() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for layer in (nn.SiLU(), nn.GELU(), nn.GELU("tanh"), nn.Mish(), nn.SELU(), nn.Tanh()):
            model = nn.Sequential(layer, linear(5)).to(dtype)
            domain = find(model, domain="auto").head.domain
            for centre in (0.0, -0.75, -1.2):
                x = torch.linspace(centre - 0.6, centre + 0.6, 8000).reshape(-1, 8).to(dtype)
                assert domain.contains(arriving(model, model[1], x)).all()
            x = torch.tensor([1e38, -3e38, 20, -20, -88, 1e-40, -1e-40, -9.0]).to(dtype)
            x = torch.nan_to_num(x, posinf=1e4)  # float16 holds less
            assert domain.contains(arriving(model, model[1], x)).all()


def test_limits_that_their_type_hardly_holds_lie_in_the_domain() -> None:
    model = nn.Sequential(nn.Hardtanh(-5e-8, 1e-7), linear(5)).to(torch.float16)
    hidden = arriving(model, model[1], torch.linspace(-1, 1, 64).reshape(8, 8).to(torch.float16))
    assert hidden.min() < -5.9e-8
    assert find(model, domain="auto").head.domain.contains(hidden).all()


def test_a_layer_norm_says_that_its_rounding_is_left_out() -> None:
    model = nn.Sequential(nn.LayerNorm(5), linear(3, 5))
    shown = find(model, domain="auto").shown_domain
    assert shown is not None
    assert isinstance(shown.domain, LayerNorm)
    assert "without rounding" in shown.assumed
    # Why: rows that are constant but for rounding come out anywhere.
    model = nn.Sequential(nn.LayerNorm(3), linear(5, 3))
    hidden = arriving(model, model[1], torch.tensor([[30000002.0, 30000000.0, 30000000.0]]))
    assert np.abs(hidden).max() > 600


@pytest.mark.parametrize("features", [2, 3, 7, 32, 100, 768])
def test_the_rounding_of_a_layer_norm_grows_with_how_far_rows_are_from_zero(features: int) -> None:
    """The bound in docs/domains.md, for rows whose spread is not lost."""
    norm = nn.LayerNorm(features, elementwise_affine=False)
    for size in 10.0 ** np.arange(0, 4.5, 0.5):
        rows = (GENERATOR.normal(size=(200, features)) + size).astype(np.float32)
        with torch.no_grad():
            given = norm(torch.from_numpy(rows)).double().numpy()
            exact = norm.double()(torch.from_numpy(rows).double()).numpy()
            norm.float()
        spread = np.sqrt(rows.astype(np.float64).var(axis=1, keepdims=True) + norm.eps)
        far = np.abs(rows).max(axis=1, keepdims=True) / spread
        bound = 2 * (features + 8) * (1 + far) * (1 + np.abs(exact)) * 2.0**-24
        small = (features * far * 2.0**-24 < 0.05)[:, 0]
        assert (np.abs(given - exact) <= bound)[small].all()


def test_what_leaves_an_rms_norm_lies_in_its_domain_exactly() -> None:
    for features, eps in ((4, None), (64, 1e-6), (768, 1e-5)):
        model = nn.Sequential(nn.RMSNorm(features, eps=eps), linear(3, features))
        with torch.no_grad():
            model[0].weight.uniform_(-2, 2)
        shown = find(model, domain="auto").shown_domain
        assert shown is not None
        assert isinstance(shown.domain, RMSNorm)
        assert not shown.assumed
        scales = torch.tensor([1e-30, 1e-20, 1e-10, 1.0, 1e10, 1e18])
        x = torch.randn(6, features) * scales[:, None]
        assert shown.domain.contains(arriving(model, model[1], x)).all()
    nothing_is_known(nn.Sequential(nn.RMSNorm(4, eps=0.0), linear(3, 4)), "RMSNorm 0 has the eps")


@pytest.mark.parametrize(
    ("after", "doubt"),
    [
        ([nn.Softmin(-1)], "Softmin 2 follows the head and may change"),
        ([nn.Softmax(0)], "along axis 0, not over the classes"),
        ([nn.Softmax(1)], "only if the model is given one row an example"),
        ([Negated()], "Negated 2 follows the head: its class"),
        ([nn.ReLU()], "ReLU 2 follows the head and may change"),
        ([nn.AdaptiveAvgPool2d(1)], "AdaptiveAvgPool2d 2 follows the head and may change"),
        ([nn.Dropout()], "in training mode"),
        ([nn.Softmax(-1), nn.Tanh(), nn.Identity()], ""),
    ],
)  # fmt: skip
def test_what_follows_the_head_keeps_the_classes_in_order_or_is_a_doubt(
    after: list[nn.Module], doubt: str
) -> None:
    model = nn.Sequential(nn.ReLU(), linear(5), *after)
    doubts = find(model).contents.choose().doubts
    assert doubt in " ".join(doubts)
    assert bool(doubts) == bool(doubt)


def test_a_convolution_may_be_followed_by_the_mean_over_its_places() -> None:
    pooled = nn.Sequential(nn.Conv2d(3, 5, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Softmax(1))
    assert find(pooled).contents.choose().doubts == ()
    bent = nn.Sequential(nn.Conv2d(3, 5, 1), nn.Sigmoid(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    assert "AdaptiveAvgPool2d 2" in find(bent).contents.choose().doubts[0]
    spread = nn.Sequential(nn.Conv2d(3, 5, 1), nn.AdaptiveAvgPool2d(2), nn.Flatten())
    assert "Flatten 2" in find(spread).contents.choose().doubts[0]


def test_a_module_with_a_forward_of_its_own_may_do_anything_with_the_scores() -> None:
    class Turned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = linear(5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return -self.head(x)

    (doubt,) = find(Turned()).contents.choose().doubts
    assert "what Turned does with the scores of head is not seen" in doubt
    assert find(linear(5)).contents.choose().doubts == ()


@pytest.mark.parametrize("name", ["GPT2LMHeadModel", "LlamaForCausalLM", "BertForMaskedLM"])
def test_a_transformers_model_whose_modules_were_changed_shows_nothing(name: str) -> None:
    model = deepcopy(make(name).model)
    assert find(model).shown_domain is not None
    norms = [n for n, m in model.named_modules() if "Norm" in type(m).__name__]
    last = model.get_submodule(norms[-1])
    handle = last.register_forward_hook(lambda _, given, result: 3 * result)
    nothing_is_known(model, f"{norms[-1]}: it has hooks")
    handle.remove()
    last.forward = lambda x: 3 * x
    nothing_is_known(model, f"{norms[-1]}: its forward was replaced")
    del last.forward
    # A class that only shares the name is another.
    model.__class__ = type(type(model).__name__, (type(model),), {})
    nothing_is_known(model, "is not a library's own")


def test_a_transformers_model_in_training_mode_drops_what_arrives() -> None:
    config = transformers.BertConfig(
        vocab_size=30, hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=8, hidden_dropout_prob=0.5, num_labels=5,
    )  # fmt: skip
    model = transformers.BertForSequenceClassification(config)
    assert find(model.eval()).shown_domain is not None
    nothing_is_known(model.train(), "in training mode")
