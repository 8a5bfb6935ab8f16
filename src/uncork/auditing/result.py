"""Audit: what was decided about a head, with its proofs."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from uncork.auditing.proofs.proofs import Proofs
from uncork.auditing.proofs.verdict import Mixture, Verdict, Witness
from uncork.core.errors import UncorkError
from uncork.core.head import Head
from uncork.core.items import Items
from uncork.core.reading import Reading, json_keys
from uncork.domain import Domain
from uncork.domain.members import digest_of


@dataclass(eq=False)
class Audit:
    """Verdicts on the classes of one head, each with its proof.

    Under a metric other than inner products they are about items, and each witness is the item's
    own vector. `head` (or `items`) may be missing in an audit loaded from a file; only `witness`
    by formula, labels and the report need it.
    """

    proofs: Proofs
    fingerprint: str
    domain: Domain
    features: int
    dtype: str
    has_bias: bool
    labels: tuple[str, ...] | None = None
    source: str = ""
    head: Head | None = None
    asked: np.ndarray | None = None  # ids, where not every class was asked for
    approximate: bool = False
    algorithm: str = "fast"
    device: str = "cpu"
    seconds: dict[str, float] = field(default_factory=dict)
    low_precision: dict[str, Any] | None = None
    proven: bool = False  # whether every verdict passed the certifier in this run
    altered: bool = False  # whether its file was changed after it was written
    reading: Reading | None = None  # which tensors of the source this is about; proves nothing
    metric: str = "inner"  # how items are compared; a head's scores are inner products
    items: Items | None = None  # instead of a head, where the metric is another

    def __post_init__(self) -> None:
        if self.reading is None and self.head is not None:
            self.reading = self.head.reading

    def __eq__(self, other: object) -> bool:
        """Whether both are of one head and domain, with equal verdicts and margins."""
        if not isinstance(other, Audit):
            return NotImplemented
        if (self.fingerprint, self.features) != (other.fingerprint, other.features):
            return False
        asked = [np.arange(a.classes) if a.asked is None else a.asked for a in (self, other)]
        return (
            digest_of(self.domain) == digest_of(other.domain)
            and np.array_equal(asked[0], asked[1])
            and np.array_equal(self.proofs.verdicts, other.proofs.verdicts)
            and np.array_equal(self.proofs.margins, other.proofs.margins, equal_nan=True)
        )

    @property
    def classes(self) -> int:
        return len(self.proofs.verdicts)

    @property
    def verdicts(self) -> np.ndarray:
        """(C,) of Verdict."""
        return np.array([Verdict(int(v)) for v in self.proofs.verdicts], dtype=object)

    @property
    def argmaxable(self) -> np.ndarray:
        return self._ids(Verdict.ARGMAXABLE)

    @property
    def unargmaxable(self) -> np.ndarray:
        return self._ids(Verdict.UNARGMAXABLE)

    @property
    def tied(self) -> np.ndarray:
        return self._ids(Verdict.TIED)

    @property
    def undecided(self) -> np.ndarray:
        return self._ids(Verdict.UNDECIDED)

    def _ids(self, verdict: Verdict) -> np.ndarray:
        """Ids with that verdict, among the classes asked for."""
        ids = self.proofs.ids(verdict)
        return ids if self.asked is None else np.intersect1d(ids, self.asked)

    @property
    def counts(self) -> dict[str, int]:
        return {
            "argmaxable": len(self.argmaxable),
            "unargmaxable": len(self.unargmaxable),
            "tied": len(self.tied),
            "undecided": len(self.undecided),
        }

    def label(self, class_id: int) -> str:
        return str(class_id) if self.labels is None else self.labels[class_id]

    def witness(self, t: int) -> np.ndarray | None:
        """An input (d,) that puts class t strictly first, or first together with its equals.

        On an image domain this is x = F(u) rounded to float64, for the u of `latent_witness`: the
        proof is about F(u) itself.
        """
        found = self._witness(t)
        if found is None:
            return None
        affine = self.domain.affine(self.features)
        return affine.image(found.x) if affine.steps else found.x

    def latent_witness(self, t: int) -> np.ndarray | None:
        """What the proof stores: u (latent,) on an image domain, where the input is x = F(u); the
        same as `witness` on every other."""
        found = self._witness(t)
        return None if found is None else found.x

    def _witness(self, t: int) -> Witness | None:
        self._check_class(t)
        if self.metric != "inner":
            return self._own_vector(t)
        if self.head is None:
            if self.proofs.scales[t] > 0:
                raise UncorkError(
                    "this audit stores the witness as a formula over the weights: "
                    "load it together with the head, Audit.load(path, head)"
                )
            return self.proofs.witness(None, t)  # type: ignore[arg-type]
        return self.proofs.witness(self.head, t)

    def _own_vector(self, t: int) -> Witness | None:
        """Under cosine or Euclidean distance: the vector of t, or of one that it is level with."""
        if self.proofs.verdicts[t] not in (Verdict.ARGMAXABLE, Verdict.TIED):
            return None
        if self.items is None:
            raise UncorkError(
                "this audit's witnesses are the items' own vectors: load it together with them, "
                "Audit.load(path, items)"
            )
        group = self._group(t) or [t]
        i = next((i for i in [t, *group] if self.proofs.scales[i] > 0), t)
        scale = float(self.proofs.scales[i])
        return Witness(self.items.take(np.array([i]))[0] * scale)

    def mixture(self, t: int) -> Mixture | None:
        """The mixture of other classes that beats t at every input, or None."""
        self._check_class(t)
        return self.proofs.mixtures.get(t)

    def margin(self, t: int) -> float:
        """Proven: how far t leads at its witness (> 0) or is beaten everywhere (≤ 0); else NaN."""
        self._check_class(t)
        return float(self.proofs.margins[t])

    def _check_class(self, t: int) -> None:
        if not 0 <= t < self.classes:
            raise UncorkError(f"class {t} is not one of the {self.classes} classes")

    def stolen_by(self, t: int, top: int = 5) -> list[dict[str, Any]]:
        """The mixture that beats an unargmaxable class: its largest shares, in order."""
        mixture = self.mixture(t)
        if mixture is None:
            return []
        return [
            {"class": i, "label": self.label(i), "weight": share} for i, share in mixture.top(top)
        ]

    def to_dict(self) -> dict[str, Any]:
        """The JSON of `uncork audit --json`."""
        from uncork import __version__

        result: dict[str, Any] = {
            "uncork": __version__,
            "source": self.source,
            "fingerprint": self.fingerprint,
            "classes": self.classes,
            "features": self.features,
            "bias": self.has_bias,
            "dtype": self.dtype,
            "metric": self.metric,
            "domain": self.domain.spec(),
            **json_keys(self.reading),
            "algorithm": self.algorithm,
            "approximate": self.approximate,
            "device": self.device,
            "counts": self.counts,
            "unargmaxable": [
                {
                    "class": t,
                    "label": self.label(t),
                    "slack": abs(self.margin(t)),
                    "stolen_by": self.stolen_by(t),
                }
                for t in self.unargmaxable.tolist()
            ],
            "tied": [
                {"class": t, "label": self.label(t), "group": self._group(t)}
                for t in self.tied.tolist()
            ],
            "undecided": [
                {"class": t, "label": self.label(t), "reason": self.proofs.reasons.get(t, "")}
                for t in self.undecided.tolist()
            ],
            "seconds": {name: round(value, 6) for name, value in self.seconds.items()},
            "proven": self.proven,
        }
        if self.asked is not None:
            result["asked"] = len(self.asked)
        if self.low_precision is not None:
            result["low_precision"] = self.low_precision
        return result

    def _group(self, t: int) -> list[int]:
        group = self.proofs.group_of(t)
        return [] if group is None else [int(i) for i in group]

    def to_pandas(self) -> Any:
        """One row for each class: class, label, verdict, margin, stolen_by (needs pandas)."""
        try:
            import pandas
        except ImportError:
            raise UncorkError("to_pandas needs pandas: pip install pandas") from None
        ids = np.arange(self.classes) if self.asked is None else self.asked
        return pandas.DataFrame(
            {
                "class": ids,
                "label": [self.label(int(t)) for t in ids],
                "verdict": [str(Verdict(int(self.proofs.verdicts[t]))) for t in ids],
                "margin": self.proofs.margins[ids],
                "stolen_by": [
                    ", ".join(str(s["label"]) for s in self.stolen_by(int(t), 3)) for t in ids
                ],
            }
        )

    def report(self, path: str | os.PathLike[str], outlook: Any = None) -> None:
        """Write a report for the browser: one file that needs no other.

        `outlook` (`uncork.reach.outlook`) adds how near its classes come to being first.
        """
        from uncork.report.page import write_report

        write_report(self, path, outlook=outlook)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write verdicts and proofs as a certificate file; see docs/certificates.md."""
        from uncork.auditing.proofs.certificate_file import write_certificates

        write_certificates(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str], head: Head | Items | None = None) -> Audit:
        """Read a certificate file. Nothing in it is believed until `uncork.verify` says so."""
        from uncork.auditing.proofs.certificate_file import read_certificates

        return read_certificates(path, head)
