"""Why shipped heads lose classes, and how near the lost ones come: every head that has some.

    python experiments/lost_reach.py --out results/lost_reach.json

For each head of `shipped_models.toml` that loses classes within ±100: what precedes it, classes a
feature, how long the rows of lost classes are against the others', how alike they are to each
other; and proven bounds of the highest probability and the best rank that lost classes reach, for
some of them, evenly spread over their ids. Nothing is downloaded twice: packages and finished heads
are kept.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from lost_on_data import lengths
from many_runs import write_json
from shipped_catalogue import CATALOGUE, Shipped, fetch, look

import uncork
from uncork import Head, UncorkError
from uncork.reach import best_rank, highest_probability

KNOWN = Path(__file__).parents[1] / "docs/results/data/shipped_models.json"


def with_losses() -> list[Shipped]:
    """The heads in which the table has unargmaxable classes."""
    rows = json.loads(KNOWN.read_text("utf-8"))["models"]
    names = {row["name"] for row in rows if row["counts"]["unargmaxable"]}
    return [one for one in CATALOGUE if one.name in names]


def spread(ids: np.ndarray, most: int) -> np.ndarray:
    """At most so many, evenly."""
    picked = np.linspace(0, len(ids) - 1, min(most, len(ids))).round().astype(np.int64)
    return np.asarray(ids[picked])


def three(values: np.ndarray) -> list[float]:
    """Least, median, largest."""
    return [float(f"{v:.4g}") for v in np.quantile(values, [0, 0.5, 1])]


def why(head: Head, lost: np.ndarray) -> dict[str, Any]:
    """Lengths of rows, all measured from the mean row; and how alike the lost ones are."""
    long = lengths(head)
    others = np.delete(long, lost)
    rows = head.take(lost) - np.asarray(head.weight, dtype=np.float64).mean(axis=0)
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    alike = (unit @ unit.T)[np.triu_indices(len(lost), 1)] if len(lost) > 1 else np.ones(1)
    shortest = set(np.argsort(long, kind="stable")[: len(lost)].tolist())
    return {
        "length_of_lost": three(long[lost]), "length_of_others": three(others),
        "bias_of_lost": three(head.offsets[lost]),
        "bias_of_others": three(np.delete(head.offsets, lost)),
        "lost_among_the_shortest": len(shortest.intersection(lost.tolist())),
        "cosine_among_lost": three(alike),
    }  # fmt: skip


def study(shipped: Shipped, asked: argparse.Namespace) -> dict[str, Any]:
    path = fetch(shipped, asked.packages)
    _, head = look(shipped, path, "box:100")
    begun = time.process_time()
    audit = uncork.audit(head, jobs=1, device="cpu")
    lost = audit.unargmaxable
    some, few = spread(lost, asked.probabilities), spread(lost, asked.ranks)
    p = highest_probability(head, some, audit=audit, jobs=1, device="cpu")
    r = best_rank(head, few, audit=audit, jobs=1, top=asked.top)
    reading = head.reading.preceded_by if head.reading else ""
    return {
        "name": shipped.name, "kind": shipped.kind, "classes": head.classes,
        "features": head.features, "bias": head.bias is not None, "lost": len(lost),
        "preceded_by": reading.split(";")[0], "proven": audit.proven, **why(head, lost),
        "probabilities_of": len(some), "highest_probability_at_least": three(p.lower),
        "highest_probability_at_most": three(p.upper),
        "ranks_of": len(few), "best_rank_at_least": three(r.lower),
        "best_rank_at_most": three(r.upper),
        "processor_seconds": round(time.process_time() - begun, 1),
    }  # fmt: skip


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="the file of results (.json)")
    parser.add_argument("--packages", type=Path, default=Path("results/shipped_models/packages"))
    parser.add_argument("--only", nargs="+", metavar="NAME", help="heads whose name begins so")
    parser.add_argument("--probabilities", type=int, default=100, help="of so many lost classes")
    parser.add_argument("--ranks", type=int, default=10, help="of so many lost classes")
    parser.add_argument("--top", type=int, default=5, help="is a rank above this proven?")
    asked = parser.parse_args(arguments)
    done = json.loads(asked.out.read_text("utf-8")) if asked.out.is_file() else []
    for shipped in with_losses():
        if any(one["name"] == shipped.name for one in done):
            continue
        if asked.only and not any(shipped.name.startswith(name) for name in asked.only):
            continue
        done.append(study(shipped, asked))
        write_json(asked.out, done, lines=True)
        print(json.dumps(done[-1], ensure_ascii=False), flush=True)


if __name__ == "__main__":
    try:
        main()
    except UncorkError as error:
        sys.exit(f"error: {error}")
