"""`python -m fuzz_domains`: as many graphs, or for as long, as one likes."""

from __future__ import annotations

import argparse
import sys
import time

from fuzz_domains.hold import Count, hold


def main() -> int:
    parser = argparse.ArgumentParser(prog="fuzz_domains", description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="how many graphs")
    parser.add_argument("--seconds", type=float, default=0.0, help="stop after so long (0: never)")
    parser.add_argument("--seed", type=int, default=0, help="the first graph's seed")
    chosen = parser.parse_args()
    count, start = Count(), time.monotonic()
    for k in range(chosen.count):
        if chosen.seconds and time.monotonic() - start > chosen.seconds:
            break
        before = len(count.violations)
        hold(chosen.seed + k, count)
        if len(count.violations) > before:
            print(count.violations[-1], flush=True)
        if k % 1000 == 999:
            print(f"{k + 1} graphs, {len(count.violations)} violations, "
                  f"{time.monotonic() - start:.0f} s", flush=True)  # fmt: skip
    print(count.text())
    return 1 if count.violations else 0


sys.exit(main())
