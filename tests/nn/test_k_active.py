"""KActiveLinear: every set of up to k labels is feasible, as the decider proves."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import uncork.nn as unn  # noqa: E402
from uncork import Head, UncorkError  # noqa: E402
from uncork.labels import LabelSets, decide_sets  # noqa: E402


@pytest.mark.parametrize(("labels", "k", "bias"), [(12, 2, False), (10, 3, True)])
def test_every_set_of_up_to_k_labels_is_feasible_whatever_the_free_columns(
    labels: int, k: int, bias: bool
) -> None:
    torch.manual_seed(0)
    layer = unn.KActiveLinear(2 * k + 3, labels, k, bias=bias, dtype=torch.float64)
    with torch.no_grad():
        layer.slack.mul_(20)
        if bias:
            layer.bias.uniform_(-0.1, 0.1)
    head = Head(
        layer.weight.detach().numpy(), None if layer.bias is None else layer.bias.detach().numpy()
    )
    every = [s for m in range(k + 1) for s in itertools.combinations(range(labels), m)]
    found = decide_sets(head.replace(domain=_far()), LabelSets.of(labels, every), jobs=1)
    assert found.counts == {"feasible": len(every), "infeasible": 0, "undecided": 0}


def _far() -> Any:
    from uncork import Box

    return Box(1e9)


def test_a_plain_layer_of_the_same_size_does_not_have_them_all() -> None:
    rng = np.random.default_rng(0)
    head = Head(rng.normal(size=(12, 5)))
    found = decide_sets(head, LabelSets.of_size(12, 2), jobs=1)
    assert found.counts["infeasible"] > 40


@pytest.mark.slow
def test_only_the_free_columns_train() -> None:
    layer = unn.KActiveLinear(7, 9, 2)
    assert [name for name, _ in layer.named_parameters()] == ["slack"]
    curve = layer.curve.clone()
    optimiser = torch.optim.SGD(layer.parameters(), 1.0)
    layer(torch.randn(4, 7)).square().sum().backward()
    optimiser.step()
    assert torch.equal(layer.curve, curve)
    x = torch.randn(3, 7)
    torch.testing.assert_close(layer.to_linear()(x), layer(x))
    again = unn.KActiveLinear(7, 9, 2)
    again.load_state_dict(layer.state_dict())
    torch.testing.assert_close(again(x), layer(x))


def test_too_few_features_are_refused() -> None:
    with pytest.raises(UncorkError, match=r"2k \+ 1 = 9"):
        unn.KActiveLinear(8, 20, 4)


def test_the_head_predicts_and_has_a_loss() -> None:
    head = unn.heads.KActiveHead(6, 8, k=2)
    hidden = torch.randn(3, 6)
    target = torch.zeros(3, 8)
    expected = torch.nn.functional.binary_cross_entropy_with_logits(head(hidden), target)
    torch.testing.assert_close(head.loss(hidden, target), expected)
    assert torch.equal(head.predict(hidden), head(hidden) > 0)


@pytest.mark.slow
def test_a_transformers_classifier_is_replaced_in_one_call() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=20, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, num_labels=10, problem_type="multi_label_classification",
    )  # fmt: skip
    model = transformers.BertForSequenceClassification(config)
    unn.heads.replace_classifier(model, 3)
    assert isinstance(model.classifier, unn.KActiveLinear)
    ids = torch.randint(20, (2, 5))
    out = model(input_ids=ids, labels=torch.zeros(2, 10))
    out.loss.backward()
    assert model.classifier.slack.grad is not None
    config.problem_type = "single_label_classification"
    with pytest.raises(UncorkError, match="multi_label_classification"):
        unn.heads.replace_classifier(transformers.BertForSequenceClassification(config), 3)
