"""How many best ranks of random heads are decided: rows of normal numbers, no bias, any input.

    python experiments/small_ranks.py

Of every head the unargmaxable classes are asked for their rank, or whether they are ever among the
first K. Times are processor time.
"""

from __future__ import annotations

import time

import numpy as np

import uncork
from uncork import Head, Unbounded
from uncork.reach import best_rank

HEADS = [(40, 5), (40, 8), (100, 8), (100, 12), (300, 8), (1000, 16)]
PLACES: list[int | None] = [None, 5, 10]


def main() -> None:
    print("classes × features | lost | asked | decided | processor seconds")
    for classes, features in HEADS:
        weight = np.random.default_rng(0).standard_normal((classes, features))
        head = Head(weight, domain=Unbounded())
        audit = uncork.audit(head, device="cpu", jobs=1)
        lost = audit.unargmaxable
        for top in PLACES:
            if not len(lost) or (top is None and classes >= 300):
                continue
            begun = time.process_time()
            found = best_rank(head, lost, audit=audit, top=top, jobs=1)
            seconds = time.process_time() - begun
            met = found.lower == found.upper
            decided = met if top is None else (found.lower > top) | (found.upper <= top)
            asked = "rank" if top is None else f"top {top}"
            print(
                f"{classes} × {features} | {len(lost)} | {asked} | {int(decided.sum())} | "
                f"{seconds:.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
