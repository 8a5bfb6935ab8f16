"""Proofs: for every class what was proven, and by what. The content of a certificate file."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from uncork.auditing.certify.products import Device
from uncork.auditing.proofs.formula import Formula
from uncork.auditing.proofs.verdict import Mixture, Verdict, Witness
from uncork.core.head import Head


@dataclass
class Proofs:
    """Verdicts (C,), margins (C,) and the proof behind each.

    `margins`: for an argmaxable class a proven lower bound on its lead at the witness, for an
    unargmaxable one minus a proven lower bound on how far it stays behind; NaN where undecided.
    """

    verdicts: np.ndarray
    margins: np.ndarray
    formula: Formula | None = None
    scales: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.float32))
    inputs: dict[int, np.ndarray] = field(default_factory=dict)  # float32 or float64
    exact: dict[int, Witness] = field(default_factory=dict)
    mixtures: dict[int, Mixture] = field(default_factory=dict)
    groups: list[np.ndarray] = field(default_factory=list)  # equal classes, ids ascending
    reasons: dict[int, str] = field(default_factory=dict)  # why a class is undecided

    @classmethod
    def empty(cls, classes: int) -> Proofs:
        return cls(
            np.zeros(classes, dtype=np.uint8),
            np.full(classes, np.nan),
            scales=np.zeros(classes, dtype=np.float32),
        )

    def copy(self) -> Proofs:
        """A copy that can be continued without changing this one; the proofs are shared."""
        return Proofs(
            self.verdicts.copy(),
            self.margins.copy(),
            self.formula,
            self.scales.copy(),
            dict(self.inputs),
            dict(self.exact),
            dict(self.mixtures),
            list(self.groups),
            dict(self.reasons),
        )

    def ids(self, verdict: Verdict) -> np.ndarray:
        return np.flatnonzero(self.verdicts == verdict)

    def group_of(self, t: int) -> np.ndarray | None:
        """The classes equal to t, t among them, or None."""
        for group in self.groups:
            if t in group:
                return group
        return None

    def witness(self, head: Head, t: int) -> Witness | None:
        """The input that puts t first (or its group, where t is tied): u where x = F(u)."""
        group = self.group_of(t) if self.verdicts[t] == Verdict.TIED else None
        for i in [t] if group is None else [int(g) for g in group]:
            if i in self.exact:
                return self.exact[i]
            if i in self.inputs:
                return Witness(np.asarray(self.inputs[i], dtype=np.float64))
            if self.formula is not None and self.scales[i] > 0:
                at = np.array([i])
                return Witness(self.formula.inputs(head, at, self.scales[at], Device())[0])
        return None

    def has_input(self, classes: np.ndarray) -> np.ndarray:
        """Whether each class has a witness in floats, by formula or stored: (n,)."""
        stored = np.isin(classes, np.fromiter(self.inputs, np.int64, len(self.inputs)))
        return np.asarray((self.scales[classes] > 0) | stored)

    def stored_inputs(self, head: Head, classes: np.ndarray, latent: int, device: Device) -> Any:
        """The float witnesses of classes that have one, in float64 on the device: (n, latent)."""
        stored = np.isin(classes, np.fromiter(self.inputs, np.int64, len(self.inputs)))
        inputs = np.full((len(classes), latent), np.nan)
        for k in np.flatnonzero(stored).tolist():
            inputs[k] = self.inputs[int(classes[k])]
        result = device.put(inputs)
        if self.formula is not None and not stored.all():
            ids = classes[~stored]
            at = device.put(np.flatnonzero(~stored))
            result[at] = self.formula.inputs(head, ids, self.scales[ids], device)
        return result

    # What was proven, for the recorder to write down

    def set_formula(self, classes: np.ndarray, scales: np.ndarray, margins: np.ndarray) -> None:
        self.verdicts[classes] = Verdict.ARGMAXABLE
        self.scales[classes] = scales
        self.margins[classes] = margins

    def set_inputs(self, classes: np.ndarray, inputs: np.ndarray, margins: np.ndarray) -> None:
        self.verdicts[classes] = Verdict.ARGMAXABLE
        self.inputs.update(zip(classes.tolist(), inputs, strict=True))
        self.margins[classes] = margins

    def set_exact(self, t: int, witness: Witness, margin: float) -> None:
        self.verdicts[t] = Verdict.ARGMAXABLE
        self.exact[t] = witness
        self.margins[t] = margin

    def set_mixture(self, t: int, mixture: Mixture, lead: float) -> None:
        self.verdicts[t] = Verdict.UNARGMAXABLE
        self.mixtures[t] = mixture
        self.margins[t] = -lead

    def set_tied(self) -> None:
        """Give every class of a group the verdict of its first: tied, or unargmaxable."""
        for group in self.groups:
            first, rest = int(group[0]), group[1:]
            if self.verdicts[first] == Verdict.ARGMAXABLE:
                self.verdicts[group] = Verdict.TIED
            elif self.verdicts[first] == Verdict.UNARGMAXABLE:
                self.verdicts[rest] = Verdict.UNARGMAXABLE
                for i in rest.tolist():
                    self.mixtures[i] = self.mixtures[first]
            self.margins[rest] = self.margins[first]
            if first in self.reasons:
                self.reasons.update(dict.fromkeys(rest.tolist(), self.reasons[first]))
