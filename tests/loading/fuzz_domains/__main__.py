"""`python -m fuzz_domains`: as many graphs, or for as long, as one likes."""

from __future__ import annotations

import argparse
import sys
import time

from fuzz_domains.children import held
from fuzz_domains.hold import Count, hold


def main() -> int:
    parser = argparse.ArgumentParser(prog="fuzz_domains", description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="how many graphs")
    parser.add_argument("--seconds", type=float, default=0.0, help="stop after so long (0: never)")
    parser.add_argument("--seed", type=int, default=0, help="the first graph's seed")
    chosen = parser.parse_args()
    total, start = Count(), time.monotonic()
    for count in held(range(chosen.seed, chosen.seed + chosen.count), hold):
        total.add(count)
        for text in count.violations:
            print(text, flush=True)
        for seed in count.crashed:
            print(f"seed {seed}: crashed the run-time", flush=True)
        spent = time.monotonic() - start
        if total.graphs % 1000 == 0:
            print(f"{total.graphs} graphs, {len(total.violations)} violations, {spent:.0f} s",
                  flush=True)  # fmt: skip
        if chosen.seconds and spent > chosen.seconds:
            break
    print(total.text())
    return 1 if total.violations else 0


if __name__ == "__main__":
    sys.exit(main())
