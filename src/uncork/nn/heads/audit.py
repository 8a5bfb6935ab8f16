"""What an audit means for each head: which of its classes some hidden state can make the argmax.

Linear heads, and those that only bend the logits by an increasing function (sigsoftmax, PLIF, the
sparse heads), have the argmax of their logits: the audit of weight and bias decides every class.

Mixtures have it not, but what no context can put first stays lost. Let class t be unargmaxable for
(W, b) over the contexts' domain D, the box [−1, 1]^e for tanh. Then (by duality, and that is the
proof the audit holds) there are λ_c ≥ 0 over other classes, Σλ = 1, with Σ_c λ_c z_c(h) ≥ z_t(h)
for every h in D. So for f convex and increasing, in each component k,

    Σ_c λ_c f(z_c(h_k)) ≥ f(Σ_c λ_c z_c(h_k)) ≥ f(z_t(h_k)).

Divided by the component's normaliser, weighted by π_k and summed: Σ_c λ_c P(c) ≥ P(t), so some
other class is at least as probable, whatever the priors and contexts are. exp is convex, and so is
sigsoftmax's exp(z) σ(z). So a mixture of softmaxes has no argmaxable class that its weight has not;
and a mixture of contexts, whose one context lies in the same box, has none either. In Mixtape the
classes that share their gates are linear among themselves: what they cannot do against each other
they cannot do at all.

The other direction is not a theorem: a context that puts t first need not be within reach. There we
search for a hidden state and check it in float64. What is neither proven nor found is `not found`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from uncork.auditing import Audit
from uncork.auditing import audit as audit_linear
from uncork.core.class_ids import class_ids
from uncork.core.errors import UncorkError
from uncork.core.head import Head
from uncork.domain import Box, Domain, Unbounded
from uncork.nn._torch import torch
from uncork.nn.heads.argmaxable import ArgmaxableHead
from uncork.nn.heads.base import OutputHead
from uncork.nn.heads.contexts import MixtureOfContexts
from uncork.nn.heads.mixtape import MixtapeHead
from uncork.nn.heads.mixture import Mixture
from uncork.nn.heads.plif import PlifHead
from uncork.nn.heads.search import search

Tensor = torch.Tensor
softplus = torch.nn.functional.softplus


@dataclass(frozen=True)
class HeadAudit:
    """What is known of each class asked about; every class is in exactly one of these."""

    head: str
    statement: str  #: what "proven" rests on for this kind of head
    linear: Audit | None  #: the audit of weight and bias with its certificates
    proven: np.ndarray  #: argmaxable, certified
    found: np.ndarray  #: argmaxable: a hidden state does it, checked in float64
    unargmaxable: np.ndarray  #: no hidden state can, certified
    tied: np.ndarray  #: equal to another class, certified
    not_found: np.ndarray  #: nothing is proven, and the search found nothing
    _hidden: dict[int, np.ndarray] = field(default_factory=dict, repr=False)

    @property
    def counts(self) -> dict[str, int]:
        names = ("proven", "found", "unargmaxable", "tied", "not_found")
        return {name: len(getattr(self, name)) for name in names}

    def witness(self, t: int) -> np.ndarray | None:
        """A hidden state (features,) that puts class t first, where one is known."""
        if t in self._hidden:
            return self._hidden[t]
        return self.linear.witness(t) if self.linear and t in self.proven else None

    def __str__(self) -> str:
        counts = ", ".join(f"{name.replace('_', ' ')} {n:,}" for name, n in self.counts.items())
        return f"{self.head}: {counts}\n{self.statement}"


def audit_head(
    head: OutputHead,
    *,
    domain: Domain | None = None,
    classes: Sequence[int] | np.ndarray | None = None,
    hidden: Tensor | None = None,
    steps: int = 100,
    restarts: int = 3,
    seed: int = 0,
    time_limit: float | None = None,
    **options: Any,
) -> HeadAudit:
    """Which classes can some hidden state of the domain make the argmax?

    Args:
        head: any head of ours.
        domain: the hidden states that can arrive; ±100 unless given.
        classes: ask about these only.
        hidden: (..., features) hidden states to try first, from data as a rule.
        steps, restarts, seed: of the search, for heads that need one.
        time_limit: seconds for the audit of the weight, and again for the search; what is left
            then is `not_found`.
        options: go to :func:`uncork.audit`: device, jobs, progress …
    """
    domain = Box(100) if domain is None else domain
    asked = np.unique(class_ids(head.classes, classes))
    options["time_limit"] = time_limit
    if not isinstance(head, Mixture | MixtureOfContexts | MixtapeHead):
        if isinstance(head, PlifHead) and bool((softplus(head.slopes.detach()) == 0).any()):
            raise UncorkError("a slope has become 0: the order of the classes is not the logits'")
        linear = audit_linear(Head(*_parameters(head), domain=domain), classes=asked, **options)
        return HeadAudit(
            head.name, _statement(head), linear, linear.argmaxable, linear.undecided[:0],
            linear.unargmaxable, linear.tied, linear.undecided,
        )  # fmt: skip
    certified, lost, tied = _certain(head, domain, asked, options)
    open_ = np.setdiff1d(asked, np.concatenate([lost, tied]))
    witnesses = search(head, open_, domain, hidden, steps, restarts, seed, time_limit)
    found = np.array(sorted(witnesses), dtype=np.int64)
    return HeadAudit(
        head.name, _statement(head), certified, found[:0], found, lost, tied,
        np.setdiff1d(open_, found), witnesses,
    )  # fmt: skip


def _parameters(head: OutputHead) -> tuple[Tensor, Tensor | None]:
    bias = head.bias
    return head.weight.detach(), None if bias is None else bias.detach()


def _certain(
    head: OutputHead, domain: Domain, asked: np.ndarray, options: dict[str, Any]
) -> tuple[Audit | None, np.ndarray, np.ndarray]:
    """The audit over the contexts' domain, and the classes it proves lost or tied for the head."""
    weight, bias = _parameters(head)
    if not isinstance(head, MixtapeHead):
        contexts = context_domain(head, domain)
        linear = audit_linear(Head(weight, bias, domain=contexts), classes=asked, **options)
        return linear, linear.unargmaxable, linear.tied
    # Classes with gates of their own are not a linear head: only the others are, among themselves.
    mine = head.frequent_classes.cpu().numpy()
    shared = np.setdiff1d(np.arange(head.classes), mine)
    wanted = np.flatnonzero(np.isin(shared, asked))
    if len(shared) < 2:
        return None, asked[:0], asked[:0]
    at = torch.from_numpy(shared).to(weight.device)
    part = Head(weight[at], None if bias is None else bias[at], domain=Box(1))
    linear = audit_linear(part, classes=wanted, **options)
    return linear, shared[linear.unargmaxable], shared[linear.tied]


def context_domain(head: OutputHead, domain: Domain) -> Domain:
    """A domain that holds every context of the head: [−1, 1] where they are a tanh."""
    assert isinstance(head, Mixture | MixtureOfContexts)
    if head.contexts.activation == "tanh":
        return Box(1)
    if not isinstance(domain, Box):
        return Unbounded()
    # P g + c over a box, coordinate by coordinate; the slack holds what rounding may add.
    projection = head.contexts.projection
    weight = projection.weight.detach().double().cpu().numpy()
    lower, upper = domain.bounds(head.features)
    if not (np.isfinite(lower).all() and np.isfinite(upper).all()):
        return Unbounded()
    offset = projection.bias.detach().double().cpu().numpy()
    middle, reach = (lower + upper) / 2, (upper - lower) / 2
    centre, width = weight @ middle + offset, np.abs(weight) @ reach
    slack = 1e-6 * (np.abs(weight) @ (np.abs(middle) + reach) + np.abs(offset) + 1e-300)
    shape = (head.contexts.components, head.embedding)
    below = (centre - width - slack).reshape(shape).min(0)
    above = (centre + width + slack).reshape(shape).max(0)
    return Box(below, above)


def _statement(head: OutputHead) -> str:
    if isinstance(head, MixtapeHead):
        return (
            "unargmaxable: no context in the box puts the class first among the classes that share "
            "their gates, by a certificate for their weight and bias. Other classes are searched."
        )
    if isinstance(head, Mixture | MixtureOfContexts):
        return (
            "unargmaxable: no context in the domain of contexts puts the class first, by a "
            "certificate for weight and bias; a mixture cannot then either (Jensen). found: a "
            "hidden state that puts the class first, checked in float64."
        )
    same = "" if isinstance(head, ArgmaxableHead) else " The order of the classes is the logits'."
    return "proven, unargmaxable: certificates for weight and bias over the domain." + same
