"""What is proven about the classes of each head, and what is only found or not found."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

import uncork  # noqa: E402
import uncork.nn as unn  # noqa: E402
from uncork.nn.heads import HEADS  # noqa: E402
from uncork.nn.heads.search import search  # noqa: E402

BENT = ("softmax", "sigsoftmax", "plif", "entmax", "sparsemax", "alpha-relu")
SEARCHED = ("mos", "moc", "mos-sigsoftmax", "mixtape")
CLASSES = 24


def made(name, seed=0, **options):
    torch.manual_seed(seed)
    head = HEADS[name](4, CLASSES, **options)
    with torch.no_grad():
        for key, parameter in head.named_parameters():
            if not key.startswith("linear") and key != "slopes":
                parameter.normal_()
    return head


@pytest.mark.parametrize("name", BENT)
def test_increasing_functions_of_the_logits_are_audited_exactly(name):
    head = made(name)
    found = head.audit()
    weight, bias = head.weight.detach().numpy(), head.bias.detach().numpy()
    linear = uncork.audit(uncork.Head(weight, bias))
    assert len(linear.unargmaxable) > 0
    np.testing.assert_array_equal(found.unargmaxable, linear.unargmaxable)
    np.testing.assert_array_equal(found.proven, linear.argmaxable)
    assert found.counts["found"] == found.counts["not_found"] == 0
    for t in found.proven[:5].tolist():
        assert int(head.double().argmax(torch.tensor(found.witness(t)))) == t


def test_an_argmaxable_head_has_no_lost_class():
    assert made("argmaxable").audit().counts["proven"] == CLASSES


@pytest.mark.parametrize("name", SEARCHED)
def test_a_mixture_is_searched_and_its_losses_are_proven(name):
    options = {"embedding": 2, "components": 4}
    head = made(name, **options)
    audit = unn.heads.audit_head(head, steps=40, restarts=2)
    assert audit.counts["proven"] == 0
    assert sum(audit.counts.values()) == CLASSES
    assert audit.counts["unargmaxable"] > 3
    assert audit.counts["found"] > 3
    exact = head.double()
    for t in audit.found.tolist():
        witness = torch.tensor(audit.witness(t))
        assert int(exact.argmax(witness)) == t
        assert float(witness.abs().max()) <= 100
    # Whatever arrives, no class proven lost comes first.
    torch.manual_seed(1)
    arrived = torch.randn(20_000, 4, dtype=torch.float64) * torch.logspace(-2, 2, 20_000)[:, None]
    first = exact.argmax(arrived.clamp(-100, 100)).numpy()
    assert not set(first.tolist()) & set(audit.unargmaxable.tolist())
    assert search(exact, audit.unargmaxable, uncork.Box(100), None, 40, 2, 0) == {}
    assert "certificate" in str(audit)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), components=st.integers(1, 5))
@pytest.mark.parametrize("name", ["mos", "mos-sigsoftmax"])
def test_no_mixture_puts_a_mixture_of_other_rows_first(name, seed, components):
    """Jensen: if z_t = Σ λ_c z_c everywhere, then P(t) ≤ Σ λ_c P(c) in every mixture."""
    generator = torch.Generator().manual_seed(seed)
    head = HEADS[name](3, 6, components=components, dtype=torch.float64)
    shares = torch.rand(5, generator=generator, dtype=torch.float64)
    shares = shares / shares.sum()
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_(3 * torch.randn(parameter.shape, generator=generator))
        head.weight[5] = shares @ head.weight[:5]
        head.bias[5] = shares @ head.bias[:5]
    hidden = 5 * torch.randn(50, 3, generator=generator, dtype=torch.float64)
    p = head.log_probabilities(hidden).exp()
    assert bool((p[:, 5] <= (p[:, :5] * shares).sum(1) * (1 + 1e-12)).all())
    assert not bool((head.argmax(hidden) == 5).any())


def test_contexts_without_a_tanh_lie_in_the_box_of_their_projection():
    head = made("mos", components=2, activation="identity", embedding=2)
    audit = head.audit(domain=uncork.Box(1), steps=20, restarts=1)
    assert sum(audit.counts.values()) == CLASSES
    box = audit.linear.domain
    torch.manual_seed(0)
    contexts, _ = head.contexts(torch.rand(1000, 4) * 2 - 1)
    assert box.contains(contexts.detach().double().numpy().reshape(-1, 2)).all()
    unbounded = head.audit(domain=uncork.Unbounded(), steps=5, restarts=1)
    assert set(unbounded.unargmaxable) <= set(audit.unargmaxable)


def test_hidden_states_from_data_are_tried_and_classes_can_be_chosen():
    head = made("mos", components=2)
    rare = torch.full((1, 4), 60.0)
    t = int(head.double().argmax(rare.double()))
    audit = head.audit(classes=[t], hidden=rare, steps=0, restarts=0)
    assert audit.counts["found"] == 1
    assert sum(audit.counts.values()) == 1
    with pytest.raises(uncork.UncorkError, match="does not exist: the head has 24"):
        head.audit(classes=[24])


def test_equal_rows_are_tied_in_a_mixture_too():
    head = made("mos", components=2, embedding=2)
    with torch.no_grad():
        best = int(head.argmax(torch.ones(1, 4)))
        other = (best + 1) % CLASSES
        head.weight[other], head.bias[other] = head.weight[best], head.bias[best]
    audit = head.audit(steps=5, restarts=1)
    assert {best, other} <= set(audit.tied.tolist())


def test_time_ends_the_search_and_claims_nothing():
    head = made("mos", components=2, embedding=2)
    audit = head.audit(time_limit=1e-6)
    assert audit.counts["found"] == 0
    assert audit.counts["not_found"] + audit.counts["unargmaxable"] == CLASSES


def test_a_flat_piece_is_no_increasing_function():
    head = made("plif")
    with torch.no_grad():
        head.slopes[3] = -1e6
    with pytest.raises(uncork.UncorkError, match="slope"):
        head.audit()


def test_a_class_that_wins_at_one_of_many_random_states_is_found():
    missed = 0
    for seed in range(3):
        torch.manual_seed(seed)
        head = unn.heads.MixtureOfSoftmaxes(6, 60, components=4)
        with torch.no_grad():
            head.weight.mul_(8.0)
            seen = head.argmax(torch.randn(20_000, 6) * torch.logspace(-1, 1.5, 20_000)[:, None])
        found = head.audit(device="cpu", seed=seed + 1)
        missed += len(np.intersect1d(found.not_found, seen.unique().numpy()))
    assert missed == 0
