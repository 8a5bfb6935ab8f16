"""The watch itself: how many classes can no longer be the argmax, every so many steps?

A class that wins at the input where it last won is still argmaxable: one product settles nearly all
of them. A win counts only if it exceeds what rounding could have made of it, and what is left goes
through the audit, with its proofs: so the counts are those of a full audit.
"""

from __future__ import annotations

import logging
import math
import tempfile
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from uncork.auditing import Audit, audit
from uncork.auditing.certify.products import Device
from uncork.core.errors import UncorkError
from uncork.core.head import Head
from uncork.domain import Ball, Box, Domain, Unbounded
from uncork.nn._rows import check_number
from uncork.nn._torch import torch
from uncork.nn.heads.audit import context_domain
from uncork.nn.heads.contexts import MixtureOfContexts
from uncork.nn.heads.mixtape import MixtapeHead
from uncork.nn.heads.mixture import Mixture
from uncork.nn.transformers.wrappers import in_use
from uncork.nn.watch.callbacks import for_keras, for_lightning, for_transformers
from uncork.nn.watch.gradient import Tokens, check_measurable, gradient_counts
from uncork.nn.watch.layers import check_has_weight, parameters
from uncork.nn.watch.leads import guesses, leads
from uncork.nn.watch.pace import Pace
from uncork.nn.watch.trackers import Page, Table, Tracker

Tensor = torch.Tensor
_LOG = logging.getLogger("uncork")
_MUCH = 0.01  # of the time: what a count that was given no share is said to exceed
_LOST = ("unargmaxable", "tied", "undecided")


class Watch:
    """Counts the unargmaxable and the nearly lost classes of a linear layer as it changes.

    layer     a module with `weight` (classes, features) and perhaps `bias`, a Dense layer of Keras,
              or a function without arguments that returns the two
    every     steps from one count to the next
    share     the most of the training time that counting may take, such as 0.01: a count that would
              go over waits until it would not. Without it every count is made, and a line says once
              if that takes more than 1 %
    domain    the inputs that can arrive; ±100 unless given. Of a mixture's hidden states, as in
              its `audit`: what is counted is what its contexts can put first, ±1 for tanh
    near      a class is nearly lost if it wins by less than this share of ‖x‖ times the mean length
              of a row, at the input it is known to win at
    tokens    a function without arguments that returns hidden states (..., features), as the layer
              gets them, and the classes to predict from them: each count then has means over these
              tokens of the share of the loss's gradient that passes the layer, `gradient_passes`,
              is lost, `gradient_lost`, and of the cosine between it and the logits' move under a
              step of the hidden state, `gradient_cosine`
    labels    one a class, for tables and the report; rows beyond the last have none
    trackers  who is told the counts, the lost classes and the report (`uncork.nn.watch.MLflow`,
              `WandB`, `TensorBoard`); unless given, those that the trainer itself reports to
    report    when they are given the report, a full audit: at the "end", at each "count", or None
    name      what the names of counts begin with
    """

    def __init__(
        self,
        layer: Any,
        *,
        every: int = 100,
        share: float | None = None,
        domain: Domain | None = None,
        near: float = 1e-3,
        tokens: Tokens | None = None,
        labels: Sequence[Any] | None = None,
        trackers: Sequence[Tracker] | None = None,
        report: str | None = "end",
        name: str = "uncork",
    ) -> None:
        expected = "one step or more from count to count"
        check_number(every, "every", expected, lambda steps: steps >= 1 and steps == int(steps))
        check_number(near, "near", "a number, at least 0", lambda share: 0 <= share < math.inf)
        if not callable(layer):  # a module is, too
            raise UncorkError(f"a layer or a function to watch, not {type(layer).__name__}")
        check_has_weight(in_use(layer))
        if report not in ("end", "count", None):
            raise UncorkError(f"report {report!r}: expected 'end', 'count' or None")
        if trackers is not None and not isinstance(trackers, Sequence):
            raise UncorkError(f"trackers: expected a list of them, got {trackers!r}")
        for tracker in trackers or ():
            if not isinstance(tracker, Tracker):
                raise UncorkError(
                    f"{tracker!r} is no tracker: expected uncork.nn.watch.MLflow(), WandB(), "
                    "TensorBoard(folder), or an object with their methods"
                )
        if tokens is not None and not callable(tokens):
            raise UncorkError(
                "tokens: expected a function that returns hidden states and targets, not "
                f"{type(tokens).__name__}"
            )
        if tokens is not None:
            check_measurable(in_use(layer))
        self.layer, self.every, self.near, self.name = layer, every, near, name
        self.tokens = tokens
        self.domain = Box(100) if domain is None else domain
        if isinstance(in_use(layer), MixtapeHead):
            raise UncorkError(
                "a Mixtape head's classes with gates of their own are not a linear head, which is "
                "all that a watch counts: call its audit() now and then"
            )
        self.labels, self.trackers, self.report = labels, trackers, report
        self.logged: Collection[str] = ()  # trackers that the trainer itself gives the counts to
        self.steps = 0
        self.history: list[dict[str, float]] = []
        self._inputs: Tensor | None = None  # (C, d): where each class last won; NaN where nowhere
        self._known = False  # whether any is known
        self._at = 0  # the step, as the trainer numbers them
        self._counted_at: int | None = None  # the step of this training's last count
        self._since: dict[int, tuple[str, int]] = {}  # verdict of a lost class, and since when
        self._pace = Pace(share)
        self._said = False  # that counting takes long
        self._said_lost = False  # that there is nothing to count
        self._told: list[Tracker] | None = None  # None until training begins
        self._told_of: list[Any] = []  # the table that they have
        self._ready: Callable[[], object] = lambda: None

    def begin(
        self,
        found: Sequence[Tracker] = (),
        *,
        logged: Collection[str] = (),
        ready: Callable[[], object] | None = None,
    ) -> None:
        """Training begins. The first `step` does this where no callback did.

        found   the trackers to tell where none were given to the watch
        logged  names of those that the trainer itself gives the counts to
        ready   is called before each count, to bring the layer up to date
        """
        given = found if self.trackers is None else self.trackers
        self._told = list(given) if _first_process() else []
        self._told_of, self.logged = [], logged
        self._ready = self._ready if ready is None else ready
        for tracker in self._told:
            tracker.begin()
        self._pace.restart()
        self.steps, self._counted_at = 0, None

    def step(self, at: int | None = None, *, last: bool = False) -> dict[str, float] | None:
        """Call once after each step of the optimiser: every so many steps a count, else None.

        `at` is the number that the trainer has for this step; after the last one there is a count.
        """
        if self._told is None:
            self.begin()
        self.steps += 1
        self._at = self.steps if at is None else at
        due = self.steps % self.every == 0 and self._pace.allows()
        return (self.count() or None) if due or last else None

    def finish(self) -> dict[str, float] | None:
        """Training is over: a last count unless this step has one, and the report."""
        counts = None if self._counted_at == self._at else self.count() or None
        if self.report == "end":
            self._tell_report("report.html")
        self._told = None
        return counts

    def count(self) -> dict[str, float]:
        """Count now: classes `unargmaxable`, `tied`, `undecided` and `nearly_lost`, how many were
        `audited` because no earlier input settles them, the `seconds` it took, and the `share` of
        the time that all counts took so far. Nothing where the training has diverged, and the
        weight or the bias is not finite."""
        if self._told is None:
            self.begin()
        self._ready()
        weight, bias = parameters(in_use(self.layer))
        if not self._finite(weight, bias):
            return {}
        if weight.is_cuda:
            torch.cuda.synchronize(weight.device)  # training that is still to be done takes its own
        began = time.perf_counter()
        result = self._counted(weight, bias)
        if self.tokens is not None:
            result |= gradient_counts(in_use(self.layer), self.tokens)
        seconds = time.perf_counter() - began
        self._pace.spend(seconds, counting=True)
        result |= {"seconds": seconds, "share": self._pace.share}
        self._counted_at = self._at
        self.history.append({"step": float(self._at), **result})
        began = time.perf_counter()
        self._tell(result)
        self._pace.spend(time.perf_counter() - began)
        self._say_if_long(seconds)
        return result

    @property
    def latest(self) -> dict[str, float]:
        """The last counts; nothing before the first."""
        last = self.history[-1] if self.history else {}
        return {name: value for name, value in last.items() if name != "step"}

    @property
    def lost(self) -> Table:
        """The classes that the last count did not find argmaxable: each one's verdict, and the step
        of the count since which it had none better."""
        rows = [(t, self._label(t), *self._since[t]) for t in sorted(self._since)]
        return Table(f"{self.name}/lost", ("class", "label", "verdict", "since step"), rows)

    def audit(self, **options: Any) -> Audit:
        """A full audit of the layer as it is now, over the inputs that the counts are about."""
        self._ready()
        weight, bias = parameters(in_use(self.layer))
        labels = None
        if self.labels is not None:
            labels = [self._label(t) for t in range(len(weight))]
        source = f"{type(in_use(self.layer)).__name__} at step {self._at}"
        head = Head(weight, bias, labels, self._arriving(), source=source)
        return audit(head, **{"device": "cuda" if weight.is_cuda else "cpu", **options})

    def _finite(self, weight: Tensor, bias: Tensor | None) -> bool:
        """Whether there is anything to count; says so once if there is not."""
        given = [weight] if bias is None else [weight, bias]
        if all(bool(torch.isfinite(one).all()) for one in given):
            return True
        if not self._said_lost:
            self._said_lost = True
            _LOG.warning(
                "Watch: the layer is not finite at step %d; nothing is counted while that is so",
                self._at,
            )
        return False

    @torch.no_grad()
    def _counted(self, weight: Tensor, bias: Tensor | None) -> dict[str, float]:
        if self.labels is not None and len(self.labels) > len(weight):
            raise UncorkError(f"there are {len(self.labels)} labels for {len(weight)} classes")
        margins = self._margins(weight, bias)
        left = np.flatnonzero(~(margins > 0))
        if len(left) and self._known:
            left = self._retried(weight, bias, margins, left)
        lost: dict[str, np.ndarray] = {name: np.empty(0, dtype=np.int64) for name in _LOST}
        if len(left):
            head = Head(weight, bias, domain=self._arriving())
            device = "cuda" if weight.is_cuda else "cpu"
            found = audit(head, classes=left, device=device)
            lost = {name: getattr(found, name) for name in _LOST}
            self._remember(found, head, weight, margins)
        verdicts = {int(t): name for name, ids in lost.items() for t in ids}
        before, now = self._since, self._at
        self._since = {
            t: (name, before[t][1] if before.get(t, ("", 0))[0] == name else now)
            for t, name in verdicts.items()
        }
        close = int(((margins > 0) & (margins < self.near)).sum())
        return {
            **{name: float(len(ids)) for name, ids in lost.items()}, "nearly_lost": float(close),
            "audited": float(len(left)),
        }  # fmt: skip

    def _label(self, t: int) -> str:
        if self.labels is None:
            return ""
        return str(self.labels[t]) if t < len(self.labels) else "(no label)"

    def _arriving(self) -> Domain:
        """What the weight multiplies: the inputs, or a mixture's contexts of them."""
        layer = in_use(self.layer)
        if isinstance(layer, Mixture | MixtureOfContexts):
            return context_domain(layer, self.domain)
        return self.domain

    def _margins(self, weight: Tensor, bias: Tensor | None) -> np.ndarray:
        """By how much each class wins where it last won, relative to ‖x‖ and the rows' mean length,
        less what rounding may have added; NaN where it is not known to win: (C,)."""
        classes, features = weight.shape
        if self._inputs is None or self._inputs.shape != (classes, features):
            self._inputs = weight.new_full((classes, features), float("nan"), dtype=torch.float32)
            self._known = False
        if not self._known:
            return np.full(classes, np.nan)
        margins = torch.full((classes,), float("nan"), device=weight.device)
        everyone = torch.arange(classes, device=weight.device)
        if self._coarse(weight):
            margins = leads(weight, bias, self._inputs, everyone, torch.bfloat16)
            # What is this close, or not known to win, is looked at again with care.
            everyone = torch.nonzero(~(margins >= self.near))[:, 0]
        if len(everyone):
            margins[everyone] = leads(weight, bias, self._inputs[everyone], everyone, torch.float32)
        known = margins.double().cpu().numpy()
        if self._arriving() is not self.domain:  # a mixture's contexts move with its projection
            held = self._arriving().contains(self._inputs.double().cpu().numpy())
            known[~held] = np.nan
        return known

    def _coarse(self, weight: Tensor) -> bool:
        """Whether bfloat16 is tried first: where its products are many times as fast."""
        return weight.is_cuda

    def _retried(
        self, weight: Tensor, bias: Tensor | None, margins: np.ndarray, left: np.ndarray
    ) -> np.ndarray:
        """Those of the classes left that do not win at their whitened rows either."""
        base = self._arriving()
        if not isinstance(base, Box | Ball | Unbounded) or self._inputs is None:
            return left
        at = torch.from_numpy(left).to(weight.device)
        guess = guesses(weight.float(), at, base)
        if guess is None:
            return left
        found = leads(weight, bias, guess, at, torch.float32)
        inside = base.contains(guess.double().cpu().numpy())
        won = (found.double().cpu().numpy() > 0) & inside
        taken = torch.from_numpy(np.flatnonzero(won)).to(weight.device)
        self._inputs[at[taken]] = guess[taken]
        margins[left[won]] = found[taken].double().cpu().numpy()
        return left[~won]

    def _remember(self, found: Any, head: Head, weight: Tensor, margins: np.ndarray) -> None:
        """The audit's witnesses, as x in float32, to begin with next time."""
        proofs = found.proofs
        asked = np.arange(head.classes) if found.asked is None else found.asked
        won = found.argmaxable[proofs.has_input(found.argmaxable)]
        assert self._inputs is not None
        self._inputs[torch.from_numpy(np.setdiff1d(asked, won)).to(weight.device)] = float("nan")
        if not len(won):
            return
        view = head.domain.affine(head.features)
        u = np.asarray(proofs.stored_inputs(head, won, view.latent, Device()))
        x = view.image(u)
        at = torch.from_numpy(won).to(weight.device)
        narrow = x.astype(np.float32)
        if not view.steps:  # rounded out of the domain, it proves nothing
            narrow[~head.domain.contains(narrow.astype(np.float64))] = np.nan
        self._inputs[at] = torch.from_numpy(narrow).to(weight.device)
        self._known = True
        lengths = np.linalg.norm(x, axis=1) * float(
            torch.linalg.vector_norm(weight.float(), dim=1).mean()
        )
        margins[won] = proofs.margins[won] / np.maximum(lengths, 1e-300)

    # Trackers

    def _tell(self, counts: dict[str, float]) -> None:
        """The counts, and the lost classes if they are others than before."""
        if not self._told:
            return
        table = self.lost
        changed = list(table.rows) != self._told_of
        self._told_of = list(table.rows)
        for tracker in list(self._told):
            if tracker.name not in self.logged:
                self._try(tracker, tracker.scalars, self.named(counts))
            if changed and tracker in self._told:  # it may just have failed
                self._try(tracker, tracker.table, table)
        if self.report == "count":
            self._tell_report(f"report_{self._at:06d}.html")

    def _tell_report(self, name: str) -> None:
        if not self._told or not self._finite(*parameters(in_use(self.layer))):
            return
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / name
            self.audit().report(path)
            for tracker in list(self._told):
                self._try(tracker, tracker.page, Page(f"{self.name}/report", path))

    def _try(self, tracker: Tracker, method: Callable[[Any, int], None], what: Any) -> None:
        """No training is lost because a server of records is."""
        try:
            method(what, self._at)
        except Exception as error:
            _LOG.warning("%s failed and is told no more: %s", tracker.name, error)
            if self._told is not None and tracker in self._told:
                self._told.remove(tracker)

    def _say_if_long(self, seconds: float) -> None:
        alone = not self.steps  # who counts without a step knows what takes the time
        if self._said or alone or self._pace.most is not None or self._pace.latest <= _MUCH:
            return
        self._said = True
        _LOG.warning(
            "Watch: a count took %.3g s, %.0f %% of the time of %d steps; Watch(..., share=%g) "
            "counts less often", seconds, 100 * self._pace.latest, self.every, _MUCH,
        )  # fmt: skip

    # Trainers

    def attach(self, trainer: Any) -> None:
        """Count during a transformers `Trainer`'s training; `trainer.log` takes the counts."""
        if isinstance(trainer, type) or not hasattr(trainer, "add_callback"):
            raise UncorkError(
                f"attach takes a Trainer of transformers, got {type(trainer).__name__}: the layer "
                "goes to Watch(layer); in a loop of your own call step() after each step, in "
                "Lightning give callbacks=[watch.lightning()], in Keras [watch.keras()]"
            )
        trainer.add_callback(for_transformers(self, trainer))

    def transformers(self) -> Any:
        """A callback for transformers' `Trainer(callbacks=[…])`. It has no trainer to log with, so
        the counts go to the trackers themselves, and to `trainer.state.log_history`."""
        return for_transformers(self)

    def lightning(self) -> Any:
        """A callback for Lightning's `Trainer(callbacks=[…])`: counts go to `log_dict`."""
        return for_lightning(self)

    def keras(self) -> Any:
        """A callback for Keras's `model.fit(callbacks=[…])`: each epoch's logs have the counts."""
        return for_keras(self)

    def named(self, counts: dict[str, float]) -> dict[str, float]:
        """The counts under the names they are logged by: `uncork/unargmaxable` and so on."""
        return {f"{self.name}/{what}": value for what, value in counts.items()}


def _first_process() -> bool:
    """Whether this process speaks for all that train together."""
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return True
    return distributed.get_rank() == 0
