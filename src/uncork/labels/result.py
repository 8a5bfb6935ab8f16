"""LabelAudit: what was decided about label sets of one head, each with its proof."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from enum import IntEnum
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np

from uncork import __version__
from uncork.core.head import Head
from uncork.core.reading import Reading, json_keys
from uncork.domain import Domain
from uncork.labels.certify import LabelCertifier
from uncork.labels.sets import LabelSets

_EXPLAINED = 1000  # infeasible sets whose conflict JSON names


class SetVerdict(IntEnum):
    """What is known of a label set. All but `UNDECIDED` rest on a proof that was checked."""

    UNDECIDED = 0
    FEASIBLE = 1
    INFEASIBLE = 2

    def __str__(self) -> str:
        return self.name.lower()


@dataclass(frozen=True)
class Proof:
    """Behind one verdict. A feasible set has an input u; an infeasible one has weights of labels,
    or an input with a target m that they follow from: λ_i = max(0, m − s_i (z_i − θ_i))."""

    u: np.ndarray | None = None  # (latent,)
    target: float = 0.0
    exact: tuple[Fraction, ...] | None = None  # u, where floats cannot hold it
    labels: np.ndarray | None = None
    weights: np.ndarray | None = None
    whole: tuple[int, ...] | None = None  # the weights, where floats cannot hold them


@dataclass(eq=False)
class LabelAudit:
    """Verdicts on label sets of one head, and their proofs."""

    sets: LabelSets
    verdicts: np.ndarray  # (n,) int8 of SetVerdict
    margins: np.ndarray  # (n,) proven: how far above zero all logits are, or how far below not
    fingerprint: str
    thresholds: np.ndarray  # (labels,) of logits
    domain: Domain
    features: int
    proofs: list[Proof | None] = field(default_factory=list)
    reasons: dict[int, str] = field(default_factory=dict)
    label_names: tuple[str, ...] | None = None
    source: str = ""
    seconds: dict[str, float] = field(default_factory=dict)
    device: str = "cpu"
    reading: Reading | None = None
    head: Head | None = None

    @property
    def feasible(self) -> np.ndarray:
        return np.flatnonzero(self.verdicts == SetVerdict.FEASIBLE)

    @property
    def infeasible(self) -> np.ndarray:
        return np.flatnonzero(self.verdicts == SetVerdict.INFEASIBLE)

    @property
    def undecided(self) -> np.ndarray:
        return np.flatnonzero(self.verdicts == SetVerdict.UNDECIDED)

    @property
    def counts(self) -> dict[str, int]:
        """How many sets have each verdict."""
        return {
            "feasible": len(self.feasible), "infeasible": len(self.infeasible),
            "undecided": len(self.undecided),
        }  # fmt: skip

    def __repr__(self) -> str:
        counts = ", ".join(f"{n:,} {verdict}" for verdict, n in self.counts.items())
        return f"LabelAudit({len(self.sets):,} label sets: {counts})"

    def label(self, i: int) -> str:
        return str(i) if self.label_names is None else self.label_names[i]

    def witness(self, k: int) -> np.ndarray | None:
        """An input at which set k is predicted; None where there is none, or none was kept."""
        proof = self.proofs[k] if self.proofs else None
        if proof is None or self.verdicts[k] != SetVerdict.FEASIBLE:
            return None
        u = np.array([float(v) for v in proof.exact]) if proof.exact is not None else proof.u
        if u is None:
            return None
        return np.asarray(self.domain.affine(self.features).image(np.asarray(u, dtype=np.float64)))

    def mixture(self, k: int) -> tuple[np.ndarray, np.ndarray] | None:
        """Labels and weights (sum one) that prove set k infeasible, heaviest first."""
        proof = self.proofs[k] if self.proofs else None
        if proof is None or self.verdicts[k] != SetVerdict.INFEASIBLE:
            return None
        if proof.labels is None:
            if self.head is None or proof.u is None:
                return None
            signs = self.sets.signs(np.array([k]))
            dense = self._certifier.weights_at(signs, proof.u[None], np.array([proof.target]))[0]
            labels = np.flatnonzero(dense)
            weights = dense[labels]
        else:
            assert proof.weights is not None
            labels, weights = proof.labels, proof.weights
        order = np.argsort(-weights, kind="stable")
        return labels[order], weights[order] / weights.sum()

    @cached_property
    def _certifier(self) -> LabelCertifier:
        assert self.head is not None
        return LabelCertifier(self.head, self.thresholds, self.domain)

    def conflict(self, k: int, top: int = 5) -> list[dict[str, Any]]:
        """The labels that weigh most in the proof that set k is infeasible."""
        found = self.mixture(k)
        if found is None:
            return []
        on = set(self.sets.on[k].tolist())
        return [
            {"label": int(i), "name": self.label(int(i)), "on": int(i) in on, "weight": float(w)}
            for i, w in zip(found[0][:top], found[1][:top], strict=True)
        ]

    def describe_set(self, k: int, conflict: bool = True) -> dict[str, Any]:
        """One set as JSON holds it; naming the conflict takes a product with all rows."""
        verdict = SetVerdict(int(self.verdicts[k]))
        on = self.sets.on[k].tolist()
        described: dict[str, Any] = {
            "labels": on, "names": [self.label(i) for i in on], "verdict": str(verdict),
            "count": int(self.sets.counts[k]), "margin": float(self.margins[k]),
        }  # fmt: skip
        if self.sets.partial[k]:
            described["others"] = "free"
            described["off"] = self.sets.off[k].tolist()
        if verdict == SetVerdict.INFEASIBLE and conflict:
            described["conflict"] = self.conflict(k)
        elif verdict == SetVerdict.UNDECIDED:
            described["reason"] = self.reasons.get(k, "")
        return described

    def to_dict(self, most: int | None = None) -> dict[str, Any]:
        """What `--json` writes. `most`: no more sets than this, infeasible and undecided first."""
        order = np.concatenate([self.infeasible, self.undecided, self.feasible])
        listed = np.sort(order if most is None else order[:most])
        explained = set(self.infeasible[:_EXPLAINED].tolist())
        return {
            "uncork": __version__, "source": self.source, "fingerprint": self.fingerprint,
            "labels": self.sets.labels, "features": self.features, "domain": str(self.domain),
            "thresholds": _one_or_all(self.thresholds),
            "counts": self.counts,
            "sets": [self.describe_set(k, k in explained) for k in listed.tolist()],
            "seconds": {name: round(s, 6) for name, s in self.seconds.items()},
            "proven": True, **json_keys(self.reading),
        }  # fmt: skip

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write every verdict with its proof, for `uncork verify`."""
        from uncork.labels.archive import write_label_audit

        write_label_audit(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str], head: Head) -> LabelAudit:
        """Read back what `save` wrote. Nothing in it is proven until it is verified."""
        from uncork.labels.archive import read_label_audit

        return read_label_audit(path, head)


def _one_or_all(values: np.ndarray) -> float | list[float]:
    same = bool((values == values[0]).all())
    return float(values[0]) if same else [float(v) for v in values]
