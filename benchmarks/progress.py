"""How good the time left is: python -m benchmarks.progress [NAME …]

Audits heads and notes when each stage of the display moves. For every stage that took a second or
more and whose length is known, the time left that its pace so far says is held against what it was
in the end: the smallest and the largest ratio between a quarter and three quarters of the stage.
"""

from __future__ import annotations

import sys
import time

import uncork
from benchmarks.heads import MADE, REAL, build
from uncork.core.progress import Progress

_REFRESHED = 0.1  # seconds between two looks at a display


class Clock(Progress):
    """When stages began and moved."""

    def __init__(self) -> None:
        self.stages: list[tuple[str, int | None, float, list[tuple[float, int]]]] = []

    def stage(self, name: str, total: int | None) -> None:
        self.stages.append((name, total, time.process_time(), []))

    def advance(self, steps: int) -> None:
        if steps:
            moves = self.stages[-1][3]
            done = moves[-1][1] if moves else 0
            moves.append((time.process_time(), done + steps))


def main(names: list[str]) -> None:
    print(f"{'head':18}{'stage':16}{'seconds':>9}{'steps':>9}  said / really left")
    for name in names:
        head, _ = build(name)
        clock = Clock()
        uncork.audit(head, device="cpu", progress=clock)
        ends = [begun for _, _, begun, _ in clock.stages[1:]] + [time.process_time()]
        for (stage, total, begun, moves), end in zip(clock.stages, ends, strict=True):
            ratios = [
                (at - begun) * (total - done) / done / (end - at)
                for (at, done), later in zip(
                    moves, [at for at, _ in moves[1:]] + [end], strict=True
                )
                if total and later - at >= _REFRESHED and 0.25 < (at - begun) / (end - begun) < 0.75
            ]
            held = f"{min(ratios):.2f} to {max(ratios):.2f}" if ratios else "-"
            if end - begun >= 1:
                print(f"{name:18}{stage:16}{end - begun:9.1f}{total or 0:9}  {held}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:] or [*REAL, *MADE])
