"""Live torch modules: the head that the model names, nothing copied, no guesses."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from small_models import variant
from torch import nn

import uncork.nn as unn
from uncork import Box, LayerNorm, UncorkError
from uncork.loading import AmbiguousError, find, load


class Plain(nn.Module):
    """Two linear layers, registered in the order opposite to the one they run in."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(8, 5)
        self.first = nn.Linear(6, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.first(x)))


def test_a_plain_module_lists_its_layers_and_asks() -> None:
    with pytest.raises(AmbiguousError, match=r"first\.weight \(8 × 6\), last\.weight \(5 × 8\)"):
        load(Plain())


class Computed(nn.Module):
    """A last layer of its own kind, which keeps no weight under that name."""

    def __init__(self) -> None:
        super().__init__()
        self.directions = nn.Parameter(torch.randn(5, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ nn.functional.normalize(self.directions).T


class Narrower(nn.Linear):
    """A kind of linear layer, which may do anything."""


@pytest.mark.parametrize(
    "last",
    [
        lambda: unn.ArgmaxableLinear(3, 5), lambda: unn.heads.EntmaxHead(3, 5), Computed,
        lambda: nn.utils.parametrizations.weight_norm(nn.Linear(3, 5)), lambda: Narrower(3, 5),
    ],
)  # fmt: skip
@pytest.mark.parametrize("around", ["sequence", "module"])
def test_a_hidden_layer_is_not_taken_for_the_head(last: Any, around: str) -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), last())
    with pytest.raises(AmbiguousError, match="weight="):
        load(model if around == "sequence" else nn.ModuleDict({"body": model}))


def test_an_output_layer_put_in_the_place_of_a_models_own_is_not_overlooked() -> None:
    model = deepcopy(variant("gpt2").model)  # tied: the configuration speaks of the embedding
    model.lm_head = unn.ArgmaxableLinear.from_linear(model.lm_head)
    with pytest.raises(UncorkError, match=r"lm_head is a ArgmaxableLinear.*to_linear"):
        load(model)


def test_a_layer_named_by_hand_comes_with_its_bias_and_without_a_copy() -> None:
    model = Plain()
    head = load(model, weight="last.weight")
    with torch.no_grad():
        model.last.weight[2, 3] = 7.0
    assert head.weight[2, 3] == 7.0
    np.testing.assert_array_equal(head.bias, model.last.bias.detach().numpy())


def test_a_single_layer_is_its_own_head() -> None:
    layer = nn.Linear(8, 5, bias=False)
    found = find(layer)
    assert (found.head.classes, found.head.features, found.head.bias) == (5, 8, None)


@pytest.mark.parametrize(
    ("layers", "low", "high"),
    [
        ([nn.ReLU()], 0.0, np.inf), ([nn.Tanh(), nn.Dropout()], -1.0, 1.0),
        ([nn.GELU()], -0.16998, np.inf), ([nn.GELU("tanh")], -0.17005, np.inf),
        ([nn.SiLU(), nn.Identity()], -0.27847, np.inf), ([nn.Sigmoid()], 0.0, 1.0),
        ([nn.ReLU6()], 0.0, 6.0), ([nn.Hardswish()], -0.37501, np.inf),
    ],
)  # fmt: skip
def test_what_precedes_the_last_layer_of_a_sequence_is_its_domain(
    layers: list[nn.Module], low: float, high: float
) -> None:
    model = nn.Sequential(nn.Linear(6, 8), *layers, nn.Linear(8, 5)).eval()
    found = find(model, domain="auto")
    assert found.weight_name == f"{len(layers) + 1}.weight"
    assert isinstance(found.head.domain, Box)
    np.testing.assert_allclose(found.head.domain.lower, low, rtol=1e-6)  # and room for rounding
    np.testing.assert_allclose(found.head.domain.upper, high, rtol=1e-6)
    with torch.no_grad():
        hidden = model[:-1](torch.randn(500, 6) * 3).numpy()
    assert found.head.domain.contains(hidden).all()


@pytest.mark.parametrize("name", [None, "0.weight"])
@pytest.mark.parametrize(
    ("last", "noted"),
    [(nn.Sigmoid(), True), (nn.LogSigmoid(), True), (nn.Softmax(-1), False), (None, False)],
)
def test_a_sigmoid_for_each_class_is_noted(last: Any, noted: bool, name: str | None) -> None:
    model = nn.Sequential(nn.Linear(3, 5), *([] if last is None else [last]))
    notes = find(model, weight=name).notes
    assert any("no argmax between them" in note for note in notes) == noted


def test_a_norm_in_a_sequence_is_its_domain() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 5)))
    with torch.no_grad():
        for parameter in model[1][0].parameters():
            parameter.uniform_(0.5, 2.0)
    found = find(model, domain="auto")
    assert isinstance(found.head.domain, LayerNorm)
    hidden = model[1][0](model[0](torch.randn(50, 6))).detach().double().numpy()
    assert found.head.domain.contains(hidden, tolerance=1e-5).all()
    assert not found.head.domain.contains(hidden * 1.5, tolerance=1e-5).any()


def test_layers_that_are_no_sequence_are_not_taken_for_one() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.trunk = nn.Sequential(nn.Linear(6, 8), nn.ReLU())
            self.classifier = nn.Sequential(nn.Dropout(), nn.Linear(8, 5))

    found = find(Two(), weight="classifier.1.weight", domain="auto")
    assert found.shown_domain is None

    class Backwards(nn.Sequential):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self[0](self[1](x))

    with pytest.raises(AmbiguousError):
        load(Backwards(nn.Linear(8, 5), nn.Linear(6, 8)))


def test_an_operation_after_the_last_layer_that_is_not_monotone_makes_it_no_head() -> None:
    with pytest.raises(AmbiguousError):
        load(nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 5), nn.BatchNorm1d(5)))
    found = find(nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 5), nn.Softmax(dim=-1)))
    assert found.weight_name == "1.weight"


def test_timm_models_say_where_their_classifier_is() -> None:
    model: Any = Plain()
    model.pretrained_cfg = {"classifier": "last", "label_names": list("abcde")}
    found = find(model)
    assert found.weight_name == "last.weight"
    assert found.head.labels == tuple("abcde")
    model.pretrained_cfg = {"classifier": ("last", "first")}
    with pytest.raises(AmbiguousError, match=r"2 classifiers.*last\.weight, first\.weight"):
        load(model)


def test_get_output_embeddings_is_believed() -> None:
    class Speaking(Plain):
        def get_output_embeddings(self) -> nn.Module:
            return self.last

    assert find(Speaking()).weight_name == "last.weight"


def test_torchvisions_names_are_known() -> None:
    network = type("SqueezeNet", (Plain,), {"__module__": "torchvision.models.squeezenet"})()
    network.classifier = nn.Sequential(
        nn.Dropout(), nn.Conv2d(8, 7, kernel_size=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1)
    )
    found = find(network)
    assert (found.weight_name, found.head.classes) == ("classifier.1.weight", 7)
    assert "may reorder" in found.why


def test_bfloat16_parameters_are_kept_as_they_are() -> None:
    layer = nn.Linear(8, 5).to(torch.bfloat16)
    head = load(layer)
    assert head.weight.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(head.rows(0, 5), layer.weight.detach().double().numpy())


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64, torch.float8_e4m3fn])
def test_other_types_are_kept_too(dtype: torch.dtype) -> None:
    weight = torch.randn(5, 8).to(dtype)
    layer = nn.Linear(8, 5, bias=False)
    layer.weight = nn.Parameter(weight, requires_grad=False)
    np.testing.assert_array_equal(load(layer).rows(0, 5), weight.double().numpy())


def test_a_model_without_values_says_so() -> None:
    with torch.device("meta"):
        layer = nn.Linear(8, 5)
    with pytest.raises(UncorkError, match="meta device"):
        load(layer)


class Compiled(nn.Module):
    """As torch.compile wraps a model; the real one takes seconds to import."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._orig_mod = model


def test_wrappers_of_training_are_looked_through() -> None:
    model = variant("gpt2").model
    for wrapper in (nn.DataParallel, Compiled):
        assert find(wrapper(model)).weight_name == "lm_head.weight"


def test_a_transformers_model_in_bfloat16(tmp_path: Any) -> None:
    model = variant("llama").model
    copy = type(model)(model.config).to(torch.bfloat16)
    copy.load_state_dict(model.state_dict())
    found = find(copy, domain="auto")
    assert found.head.dtype == "bfloat16"
    copy.save_pretrained(tmp_path)
    assert find(tmp_path, domain="auto").head.fingerprint == found.head.fingerprint


def test_a_model_without_its_head_is_refused() -> None:
    with pytest.raises(AmbiguousError, match="no head"):
        load(variant("bert").model.bert)


def test_a_module_without_parameters_and_things_that_are_no_models() -> None:
    with pytest.raises(UncorkError, match="no parameters"):
        load(nn.ReLU())
    with pytest.raises(UncorkError, match="not a model that uncork reads"):
        load(object())
