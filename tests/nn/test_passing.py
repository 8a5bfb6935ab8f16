"""What passes of a gradient, measured on the layer's device: autograd's, and the stored head's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from uncork import Box, Head, UncorkError
from uncork.nn import Watch, heads, passing
from uncork.nn.passing import Passing, measure_passing
from uncork.nn.watch.gradient import passing_of
from uncork.theory.gradient import Output, measure_gradient, measure_mixture

KINDS = {
    "softmax": {}, "sparsemax": {}, "entmax": {"alpha": 1.5}, "alpha-relu": {"tau": 0.25},
    "argmaxable": {}, "moc": {"components": 3}, "normmax": {},
}  # fmt: skip


def tokens(n: int = 12, features: int = 6, classes: int = 40) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(n, features, generator=generator, dtype=torch.float64)
    return hidden, torch.randint(classes, (n,), generator=generator)


def of(kind: str, features: int = 6, classes: int = 40) -> heads.OutputHead:
    torch.manual_seed(1)
    head = heads.HEADS[kind](features, classes, dtype=torch.float64, **KINDS.get(kind, {}))
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.add_(torch.randn_like(parameter))
    return head


def test_one_feature_by_hand() -> None:
    """As in tests/theory: W = (1, 1, 0), h = 0, target 0: g = (−⅔, ⅓, ⅓) and the share 1/√12."""
    found = measure_passing(
        torch.tensor([[1.0], [1.0], [0.0]]), None, torch.zeros(1, 1), torch.tensor([0])
    )
    assert found.norm.item() == pytest.approx(np.sqrt(2 / 3))
    assert found.share.item() == pytest.approx(1 / np.sqrt(12))
    assert found.step.item() == pytest.approx(1 / np.sqrt(12))
    assert found.moved.item() == pytest.approx(np.sqrt(2) / 3)
    assert found.at_target.item() == pytest.approx(-2 / 3)


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_autograds_gradient_that_is_measured(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passing, "_BYTES", 8 * 40 * 5)  # five tokens at a time
    monkeypatch.setattr(passing, "_ROWS", 7)
    head = of(kind)
    assert isinstance(head, heads.softmax.LinearHead)
    hidden, target = tokens()
    found = passing_of(head, hidden, target)
    weight, bias = (None if each is None else each.detach() for each in head._shared_tensors())
    (states,) = head._row_tensors(hidden)
    z = (states.detach() @ weight.T + (0 if bias is None else bias)).requires_grad_()
    # The loss of the logits themselves: a linear loss whose weight is the identity.
    one = torch.eye(40, dtype=torch.float64)
    from uncork.nn.linear.autograd import linear_loss
    from uncork.nn.losses.specification import LinearArguments, Reduction

    linear_loss(
        head.specification, head._family_parameters(), z, one, target,
        Reduction(None, -100, "sum", 0.0), LinearArguments(None),
    ).loss.backward()  # fmt: skip
    g = z.grad
    assert g is not None
    torch.testing.assert_close(found.norm, g.norm(dim=1), rtol=1e-7, atol=1e-9)
    there = found.norm > 1e-9
    solution = torch.linalg.lstsq(weight, g.T).solution
    through = (weight @ solution).norm(dim=0)
    torch.testing.assert_close(
        found.share[there], (through / g.norm(dim=1))[there], rtol=1e-6, atol=1e-9
    )
    moved = g @ weight @ weight.T
    cosine = (moved * g).sum(1) / moved.norm(dim=1) / g.norm(dim=1)
    torch.testing.assert_close(found.step[there], cosine[there], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    "output",
    [Output(), Output("sparsemax"), Output("entmax", 1.5), Output("alpha-relu", 1.5, 0.25)],
)
def test_a_stored_head_gives_the_same(output: Output) -> None:
    hidden, target = tokens()
    head = of(output.name)
    found = passing_of(head, hidden, target)
    assert head.bias is not None
    stored = Head(head.weight.detach().numpy(), head.bias.detach().numpy())
    expected = measure_gradient(stored, hidden.numpy(), target.numpy(), output=output, device="cpu")
    for name in ("norm", "share", "lost", "step", "target", "support"):
        np.testing.assert_allclose(
            getattr(found, name).numpy(), getattr(expected, name), rtol=1e-6, atol=1e-9
        )
    assert found.total == pytest.approx(expected.total, rel=1e-6)


def test_a_mixtures_components_count_as_far_as_they_are_responsible() -> None:
    head = of("mos")
    hidden, target = tokens()
    found = passing_of(head, hidden, target)
    contexts, log_prior = head.contexts(hidden)  # type: ignore[operator]
    assert head.bias is not None
    stored = Head(head.weight.detach().numpy(), head.bias.detach().numpy())
    expected = measure_mixture(
        stored, contexts.detach().numpy(), log_prior.detach().exp().numpy(), target.numpy()
    )
    np.testing.assert_allclose(found.share.numpy(), expected.stacked, rtol=1e-6)
    # The whole gradient and its move, from autograd through all components' logits.
    z = (contexts @ head.weight.T + head.bias).detach().requires_grad_()
    parts = torch.log_softmax(z, -1) + log_prior.detach()[..., None]
    rows = torch.arange(len(target))
    (-torch.logsumexp(parts, 1)[rows, target]).sum().backward()
    g = z.grad
    assert g is not None
    torch.testing.assert_close(found.norm, g.flatten(1).norm(dim=1))
    moved = g @ head.weight.detach() @ head.weight.detach().T
    cosine = (moved * g).flatten(1).sum(1) / moved.flatten(1).norm(dim=1) / found.norm
    torch.testing.assert_close(found.step, cosine)
    torch.testing.assert_close(found.moved, moved.flatten(1).norm(dim=1))


def test_a_metric_turns_the_step_and_not_what_passes() -> None:
    """With K = (WᵀW)⁻¹ the logits move along P g, and its cosine is the share itself."""
    head, (hidden, target) = of("softmax"), tokens()
    plain = passing_of(head, hidden, target)
    weight = head.weight.detach()
    found = measure_passing(
        weight, head.bias, hidden, target, metric=torch.linalg.inv(weight.T @ weight)
    )
    torch.testing.assert_close(found.share, plain.share)
    torch.testing.assert_close(found.step, plain.share)
    assert (plain.step < plain.share).all()


def test_dependent_columns_count_once_and_ignored_tokens_not_at_all() -> None:
    head, (hidden, target) = of("softmax"), tokens()
    weight = head.weight.detach()
    twice = torch.cat([weight, weight[:, :2], torch.zeros(40, 1)], 1)
    wider = torch.cat([hidden, torch.zeros(12, 3, dtype=torch.float64)], 1)
    some = torch.where(torch.arange(12) % 2 == 0, -100, target)
    found = measure_passing(twice, head.bias, wider, some)
    plain = measure_passing(weight, head.bias, hidden[1::2], target[1::2])
    torch.testing.assert_close(found.share, plain.share)


def test_tokens_that_do_not_fit_are_refused() -> None:
    weight = torch.zeros(3, 2)
    with pytest.raises(UncorkError, match="expected \\(\\.\\.\\., 2\\)"):
        measure_passing(weight, None, torch.zeros(4, 3), torch.zeros(4, dtype=torch.long))
    with pytest.raises(UncorkError, match="no token"):
        measure_passing(weight, None, torch.zeros(4, 2), torch.full((4,), -100))
    for wrong in (-1, 3):
        with pytest.raises(IndexError, match=f"target {wrong} is out of bounds for 3 classes"):
            measure_passing(weight, None, torch.zeros(1, 2), torch.tensor([wrong]))
    with pytest.raises(UncorkError, match="target must be class indices"):
        measure_passing(weight, None, torch.zeros(1, 2), torch.zeros(1))
    with pytest.raises(UncorkError, match="sigsoftmax"):
        Watch(heads.HEADS["sigsoftmax"](2, 3), tokens=lambda: (torch.zeros(1, 2), torch.zeros(1)))
    with pytest.raises(UncorkError, match="sigsoftmax"):
        passing_of(heads.HEADS["sigsoftmax"](2, 3), torch.zeros(1, 2), torch.tensor([0]))


# In a watch


def test_a_watch_that_is_given_tokens_counts_what_passes() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(4, 30)
    hidden, target = torch.randn(2, 8, 4), torch.randint(30, (2, 8))
    watch = Watch(layer, every=2, domain=Box(10), tokens=lambda: (hidden, target))
    assert watch.step() is None
    counts = watch.step()
    assert counts is not None
    found = passing_of(layer, hidden, target)
    assert isinstance(found, Passing)
    assert counts["gradient_passes"] == pytest.approx(float(found.share.mean()))
    assert counts["gradient_lost"] == pytest.approx(float(found.lost.mean()))
    assert counts["gradient_cosine"] == pytest.approx(float(found.step.mean()))
    assert 0 < counts["gradient_cosine"] <= counts["gradient_passes"] < 1
    assert watch.history[-1]["gradient_passes"] == counts["gradient_passes"]
    assert "gradient_passes" not in Watch(layer).count()


def test_half_precision_hidden_states_are_taken_as_they_are() -> None:
    torch.manual_seed(0)
    head = heads.HEADS["mos"](4, 30, components=2)
    hidden, target = torch.randn(16, 4).bfloat16(), torch.randint(30, (16,))
    counts = Watch(head, domain=Box(1), tokens=lambda: (hidden, target)).count()
    assert 0 < counts["gradient_passes"] < 1


def test_tokens_through_a_model_that_drops_out_leave_the_training_as_it_was() -> None:
    def trained(watched: bool) -> torch.Tensor:
        torch.manual_seed(0)
        layer, body = nn.Linear(4, 30), nn.Dropout(0.5)
        hidden, target = torch.randn(16, 4), torch.randint(30, (16,))
        seen = []

        def tokens() -> tuple[torch.Tensor, torch.Tensor]:
            seen.append(torch.is_grad_enabled())
            return body(hidden), target

        watch = Watch(layer, every=1, report=None, tokens=tokens if watched else None)
        for _ in range(3):
            layer.zero_grad()
            nn.functional.cross_entropy(layer(body(hidden)), target).backward()
            with torch.no_grad():
                layer.weight -= layer.weight.grad
            watch.step()
        assert seen == [False] * 3 * watched
        return layer.weight.detach()

    assert torch.equal(trained(True), trained(False))


def test_tokens_must_be_a_function_that_returns_two_tensors() -> None:
    with pytest.raises(UncorkError, match="expected a function"):
        Watch(nn.Linear(2, 3), tokens=(torch.zeros(1, 2), torch.zeros(1)))  # type: ignore[arg-type]
    watch = Watch(nn.Linear(2, 3), every=1, tokens=lambda: torch.zeros(4, 2))  # type: ignore
    with pytest.raises(UncorkError, match="hidden states and targets, got Tensor from it"):
        watch.step()
