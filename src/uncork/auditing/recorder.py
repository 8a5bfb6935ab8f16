"""The recorder: the only way into `Proofs`. A proposal is written down once certified."""

from __future__ import annotations

import time
from collections.abc import Generator
from dataclasses import replace
from typing import Any

import numpy as np

from uncork.auditing.backend import Backend
from uncork.auditing.certify.certifier import Certifier
from uncork.auditing.certify.guesses import Guesses, Proven
from uncork.auditing.certify.verify import mixture_leads
from uncork.auditing.folded import Folded
from uncork.auditing.proofs.formula import Formula, to_single
from uncork.auditing.proofs.proofs import Proofs
from uncork.auditing.proofs.verdict import Mixture, Verdict, Witness
from uncork.auditing.search.guesses import Guess, first_guess, formula
from uncork.auditing.search.proposer import (
    ExactWitness,
    FirstGuesses,
    GaveUp,
    Mixtures,
    Proposal,
    Witnesses,
)
from uncork.auditing.search.space import Space
from uncork.core.rigour import row_norms

# A formula's margin, as a share of the logits' size, that other machines' rounding keeps.
_ROBUST = 1e-9


class Recorder:
    """Collects proposals, certifies them in blocks, and keeps the proofs that held."""

    def __init__(self, certifier: Certifier, backend: Backend, strict: bool = False) -> None:
        self.certifier, self.backend, self.strict = certifier, backend, strict
        self.head = certifier.head
        self.proofs = Proofs.empty(self.head.classes)
        self.groups: dict[int, np.ndarray] = {}
        self.seconds = 0.0
        self._by_formula: list[np.ndarray] = []
        self._by_input: list[tuple[np.ndarray, np.ndarray]] = []
        self._waiting = 0
        self.guess: Guess | None = None  # the first guess of every class, and how it is proven
        self._guesses: Generator[Proven] | None = None
        self._guessed = 0  # classes below this one have been looked at
        self._same_guess = False  # whether the formula's guess is that of the space's own points

    def use_formula(self, space: Space) -> None:
        """Store first guesses as a formula, where the formula is smaller than the head."""
        small = 4 * self.head.features * space.features <= self.head.weight.nbytes
        folded = isinstance(space.head, Folded)
        full = len(space.to_input) == self.head.features or folded
        full = full and space.origin is None
        if self.proofs.formula is not None or not small or not full:
            return
        if Formula.fits(space.outline) and np.isnan(space.fixed).all():
            guess = first_guess(space)
            if guess is None:
                return
            centre = self.certifier.products.centre if folded else guess.coordinates.centre
            self.proofs.formula = formula(space, guess, centre)
            if self.proofs.formula is not None:
                self.guess, self._same_guess = guess, not guess.weighted

    def take_over(self, earlier: Proofs) -> None:
        """Start from another audit's proofs, each checked again."""
        from uncork.auditing.certify.verify import verify_proofs

        begun = time.perf_counter()
        earlier = earlier.copy()
        failed = verify_proofs(self.certifier, earlier, self.backend).failed
        earlier.verdicts[list(failed)] = Verdict.UNDECIDED
        for t in failed:
            earlier.scales[t] = 0
            for proven in (earlier.inputs, earlier.exact, earlier.mixtures):
                proven.pop(t, None)
        earlier.reasons.clear()
        earlier.groups = self.proofs.groups
        self.proofs = earlier
        self.seconds += time.perf_counter() - begun

    def consider(self, proposal: Proposal, wanted: np.ndarray) -> np.ndarray:
        """Take a proposal to the certifier, now or with others at the next flush.

        Only what is about classes that are `wanted` (C,) and undecided is considered; returns
        those classes. A class that stands behind its first equal is never wanted: what puts it
        first puts both first, and that is another verdict.
        """
        classes = proposal.classes
        exists = (classes >= 0) & (classes < self.head.classes)
        at = np.where(exists, classes, 0)
        considered = exists & wanted[at] & (self.proofs.verdicts[at] == Verdict.UNDECIDED)
        if isinstance(proposal, FirstGuesses):
            self._consider_guesses(classes, wanted)
        elif isinstance(proposal, Witnesses):
            inputs = proposal.inputs
            if not considered.all():
                at = np.flatnonzero(considered)
                inputs = inputs[at if isinstance(inputs, np.ndarray) else self.backend.index(at)]
            self.propose(classes[considered], inputs, proposal.formula)
        elif isinstance(proposal, Mixtures):
            pairs = zip(proposal.pairs, considered.tolist(), strict=True)
            self.propose_mixtures([pair for pair, is_considered in pairs if is_considered])
        elif considered.all() and isinstance(proposal, ExactWitness):
            self.propose_exact(proposal.class_id, proposal.witness)
        elif considered.all() and isinstance(proposal, GaveUp):
            self.proofs.reasons[proposal.class_id] = proposal.why
        return np.asarray(classes[considered])

    # Witnesses

    def propose(self, classes: np.ndarray, inputs: Any, formula: bool = False) -> None:
        """An input (n, latent) for each class; certified at the next flush."""
        if not len(classes):
            return
        # The formula may be of another guess than the space's: then these inputs are stored.
        if formula and self._same_guess:
            self._by_formula.append(np.asarray(classes))
        else:
            stored = inputs if isinstance(inputs, np.ndarray) else self.backend.get(inputs)
            self._by_input.append((np.asarray(classes), stored))
        self._waiting += len(classes)
        if self._waiting >= 4 * self.backend.jobs * self.backend.inputs:
            self.flush()

    def flush(self) -> None:
        """Certify what is waiting. A class refused stays undecided and goes back to deciding."""
        begun = time.perf_counter()
        formula, self._by_formula = self._by_formula, []
        stored, self._by_input = self._by_input, []
        self._waiting = 0
        if self._guesses is not None:
            self._guesses.close()  # what was not waited for is not computed
            self.guess = self._guesses = None
        if formula:
            self._flush_formula(np.concatenate(formula))
        if stored:
            classes = np.concatenate([c for c, _ in stored])
            inputs = np.concatenate([x for _, x in stored])
            self._flush_inputs(classes, inputs)
        self.seconds += time.perf_counter() - begun

    def _consider_guesses(self, classes: np.ndarray, wanted: np.ndarray) -> None:
        """All first guesses together, up to the last of these classes."""
        begun = time.perf_counter()
        if self._guesses is None:
            assert self.guess is not None
            assert self.proofs.formula is not None
            self._guesses = Guesses(
                self.certifier, self.backend, self.proofs.formula, self.guess.coordinates,
                self.proofs.groups, strict=self.strict,
            ).run()  # fmt: skip
        while len(classes) and self._guessed <= classes.max():
            found = next(self._guesses, None)
            if found is None:
                break
            good = (found.margins > 0) & found.robust & wanted[found.classes]
            good &= self.proofs.verdicts[found.classes] == Verdict.UNDECIDED
            self.proofs.set_formula(found.classes[good], found.scales[good], found.margins[good])
            self._guessed = int(found.classes[-1]) + 1
        self.seconds += time.perf_counter() - begun

    def _flush_formula(self, classes: np.ndarray) -> None:
        formula = self.proofs.formula
        assert formula is not None

        def check(part: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            backend = self.backend
            directions = formula.directions(self.head, part, backend)
            domain = self.certifier.base
            scales = formula.scales(domain, directions, backend)
            inputs = directions * backend.put(scales.astype(np.float64))[:, None]
            inputs = to_single(inputs, backend)
            margins = self.certifier.witnesses(part, inputs, self.groups)
            robust = formula.keeps(domain, self.head, part, scales, inputs, backend)
            x = self.certifier.latent.forward(inputs)[0]
            lengths = backend.get(row_norms(x, backend.xp))
            size = lengths * self.certifier.products.norms[part]
            return scales, margins, (margins > _ROBUST * size) & (scales > 0) & robust

        step = self.backend.inputs
        parts = [classes[start : start + step] for start in range(0, len(classes), step)]
        with self.backend.threads() as over:
            for part, (scales, margins, good) in zip(parts, over(check, parts), strict=True):
                self.proofs.set_formula(part[good], scales[good], margins[good])

    def _flush_inputs(self, classes: np.ndarray, inputs: np.ndarray) -> None:
        with np.errstate(over="ignore"):
            narrow = inputs.astype(np.float32)
        refused = self._certify_inputs(classes, narrow)
        if len(refused) and inputs.dtype != np.float32:
            self._certify_inputs(classes[refused], inputs[refused])

    def _certify_inputs(self, classes: np.ndarray, inputs: np.ndarray) -> np.ndarray:
        """Record the inputs that hold; returns the positions of those that do not."""

        def check(part: slice) -> np.ndarray:
            return self.certifier.witnesses(classes[part], inputs[part], self.groups)

        step = self.backend.inputs
        parts = [slice(start, start + step) for start in range(0, len(classes), step)]
        with self.backend.threads() as over:
            margins = np.concatenate(list(over(check, parts)))
        good = np.flatnonzero(margins > 0)
        self.proofs.set_inputs(classes[good], inputs[good], margins[good])
        return np.flatnonzero(~(margins > 0))

    def propose_exact(self, t: int, witness: Witness) -> None:
        """One input given as fractions: its float image if that wins too, else the fractions."""
        begun = time.perf_counter()
        if np.isfinite(witness.x).all():
            self._flush_inputs(np.array([t]), np.asarray(witness.x, dtype=np.float64)[None, :])
        if self.proofs.verdicts[t] != Verdict.ARGMAXABLE:
            margin = self.certifier.exact_witness(t, witness, self.groups)
            if margin > 0:
                self.proofs.set_exact(t, witness, margin)
        self.seconds += time.perf_counter() - begun

    # Mixtures

    def propose_mixtures(self, proposals: list[tuple[int, Mixture]]) -> None:
        """Certify mixtures at once. Weights stay in float32 if that is enough."""
        begun = time.perf_counter()
        for narrow in (True, False):
            if not proposals:
                break
            tried = [(t, _narrow(m) if narrow else m) for t, m in proposals]
            leads = mixture_leads(self.certifier, tried, self.backend)
            for (t, mixture), lead in zip(tried, leads.tolist(), strict=True):
                if lead >= 0:
                    self.proofs.set_mixture(t, mixture, lead)
            proposals = [
                p for p, lead in zip(proposals, leads.tolist(), strict=True) if not lead >= 0
            ]
        self.seconds += time.perf_counter() - begun


def _narrow(mixture: Mixture) -> Mixture:
    if mixture.integers is not None:
        return mixture
    return replace(mixture, weights=mixture.weights.astype(np.float32))
