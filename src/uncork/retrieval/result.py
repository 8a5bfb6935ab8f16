"""Retrieval: what was decided about the relevant items of each query, with its proofs."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from enum import IntEnum
from fractions import Fraction
from typing import Any

import numpy as np

from uncork import __version__
from uncork.core.items import Items
from uncork.core.reading import Reading, json_keys
from uncork.domain import Domain
from uncork.retrieval.certify import Mixtures
from uncork.retrieval.judgements import Judgements
from uncork.retrieval.places import Places

_NAMED = 5  # items of a proof that JSON names on each side


class TopSet(IntEnum):
    """Whether some query ranks all relevant items before all others."""

    UNDECIDED = 0
    POSSIBLE = 1
    IMPOSSIBLE = 2

    def __str__(self) -> str:
        return self.name.lower()


@dataclass(frozen=True)
class SetProof:
    """Behind one verdict: a query (as floats or as fractions), or two mixtures."""

    u: np.ndarray | None = None  # (latent,)
    exact: tuple[Fraction, ...] | None = None
    mixtures: Mixtures | None = None


@dataclass(frozen=True)
class Own:
    """What the query vectors at hand do: proven, ties counting against them."""

    vectors: np.ndarray  # (queries, d)
    on_top: np.ndarray  # (queries,) whether all relevant items are before all others
    first: np.ndarray  # (queries,) how many of them are among the first k


@dataclass(eq=False)
class Retrieval:
    """Verdicts on the relevant sets of a benchmark, for one index and one domain of queries."""

    judgements: Judgements
    k: int
    verdicts: np.ndarray  # (queries,) int8 of TopSet
    margins: np.ndarray  # (queries,)
    proofs: list[SetProof | None]
    places: list[Places]
    fingerprint: str
    metric: str
    domain: Domain
    items: int
    features: int
    labels: tuple[str, ...] | None = None
    source: str = ""
    own: Own | None = None
    reasons: dict[int, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    reading: Reading | None = None

    @property
    def possible(self) -> np.ndarray:
        return np.flatnonzero(self.verdicts == TopSet.POSSIBLE)

    @property
    def impossible(self) -> np.ndarray:
        return np.flatnonzero(self.verdicts == TopSet.IMPOSSIBLE)

    @property
    def undecided(self) -> np.ndarray:
        return np.flatnonzero(self.verdicts == TopSet.UNDECIDED)

    @property
    def counts(self) -> dict[str, int]:
        return {
            "possible": len(self.possible), "impossible": len(self.impossible),
            "undecided": len(self.undecided),
        }  # fmt: skip

    @property
    def recall(self) -> tuple[float, float]:
        """Bounds on the highest recall@k that any query vectors can have: the mean over queries of
        the share of relevant items among the first k."""
        sizes = np.array([len(ids) for ids in self.judgements.relevant])
        lower = np.array([p.lower for p in self.places]) / sizes
        upper = np.array([p.upper for p in self.places]) / sizes
        return float(lower.mean()), float(upper.mean())

    @property
    def own_recall(self) -> float | None:
        """Recall@k of the query vectors at hand."""
        if self.own is None:
            return None
        sizes = np.array([len(ids) for ids in self.judgements.relevant])
        return float((self.own.first / sizes).mean())

    def fault(self, q: int) -> str:
        """Whose it is that a query's relevant items are not on top, where its vector is known."""
        if self.own is None:
            return ""
        if self.own.on_top[q]:
            return "none"
        verdict = TopSet(int(self.verdicts[q]))
        return {
            TopSet.POSSIBLE: "query", TopSet.IMPOSSIBLE: "items", TopSet.UNDECIDED: "undecided",
        }[verdict]  # fmt: skip

    @property
    def faults(self) -> dict[str, int]:
        """How many queries are as they should be, missed by their vector, or hopeless."""
        named = [self.fault(q) for q in range(len(self.judgements))]
        return {name: named.count(name) for name in ("none", "query", "items", "undecided")}

    def __repr__(self) -> str:
        counts = ", ".join(f"{n:,} {verdict}" for verdict, n in self.counts.items())
        return f"Retrieval({len(self.judgements):,} queries: {counts})"

    def label(self, i: int) -> str:
        return str(i) if self.labels is None else self.labels[i]

    def witness(self, q: int) -> np.ndarray | None:
        """A query vector that ranks all relevant items of query q on top."""
        proof = self.proofs[q]
        if proof is None or self.verdicts[q] != TopSet.POSSIBLE:
            return None
        u = proof.u if proof.exact is None else np.array([float(v) for v in proof.exact])
        if u is None:
            return None
        return np.asarray(self.domain.affine(self.features).image(np.asarray(u, np.float64)))

    def conflict(self, q: int, most: int = _NAMED) -> dict[str, Any] | None:
        """The two mixtures that prove query q impossible, heaviest items first."""
        proof = self.proofs[q]
        if proof is None or proof.mixtures is None:
            return None
        found = proof.mixtures

        def side(ids: np.ndarray, weights: tuple[int, ...]) -> list[dict[str, Any]]:
            total = sum(weights)
            order = sorted(range(len(ids)), key=lambda n: -weights[n])[:most]
            return [
                {
                    "item": int(ids[n]),
                    "label": self.label(int(ids[n])),
                    "weight": weights[n] / total,
                }
                for n in order
            ]

        return {
            "relevant": side(found.relevant, found.relevant_weights),
            "others": side(found.others, found.other_weights),
            "items": [len(found.relevant), len(found.others)],
        }

    def describe(self, q: int) -> dict[str, Any]:
        """One query as JSON holds it."""
        ids = self.judgements.relevant[q].tolist()
        verdict = TopSet(int(self.verdicts[q]))
        place = self.places[q]
        described: dict[str, Any] = {
            "query": self.judgements.queries[q], "relevant": ids,
            "labels": [self.label(i) for i in ids], "top_set": str(verdict),
            "margin": float(self.margins[q]),
            "among_first": {"lower": place.lower, "upper": place.upper},
        }  # fmt: skip
        if verdict == TopSet.IMPOSSIBLE:
            described["conflict"] = self.conflict(q)
        elif verdict == TopSet.UNDECIDED:
            described["reason"] = self.reasons.get(q, "")
        if self.own is not None:
            described["own"] = {
                "on_top": bool(self.own.on_top[q]), "among_first": int(self.own.first[q]),
            }  # fmt: skip
            described["fault"] = self.fault(q)
        return described

    def to_dict(self) -> dict[str, Any]:
        """What `--json` writes."""
        low, high = self.recall
        held: dict[str, Any] = {
            "uncork": __version__, "source": self.source, "fingerprint": self.fingerprint,
            "metric": self.metric, "items": self.items, "features": self.features,
            "domain": str(self.domain), "k": self.k, "counts": self.counts,
            "recall": {"lower": low, "upper": high},
        }  # fmt: skip
        if self.own is not None:
            held["own_recall"], held["faults"] = self.own_recall, self.faults
        return {
            **held, "queries": [self.describe(q) for q in range(len(self.judgements))],
            "notes_on_judgements": list(self.judgements.notes),
            "seconds": {name: round(s, 6) for name, s in self.seconds.items()},
            "proven": True, **json_keys(self.reading),
        }  # fmt: skip

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write every verdict and bound with its proof, for `uncork verify`."""
        from uncork.retrieval.archive import write_retrieval

        write_retrieval(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str], items: Items) -> Retrieval:
        """Read back what `save` wrote. Nothing in it is proven until it is verified."""
        from uncork.retrieval.archive import read_retrieval

        return read_retrieval(path, items)
