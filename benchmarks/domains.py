"""What really arrives against ±100: python -m benchmarks.domains [FILE[:WEIGHT[:DOMAIN]] …]

Each head is audited with the inputs that its model shows (`auto`, or the domain given) and with
±100, in one process after a first audit that warms up, and the ratio of the times is printed: of
`--repeat` turns, one and the other by turns, the shortest of each. A
file may name its weight and a domain besides (`model.pth:_fc.weight:box:0,6`). Made heads follow
the activations that models have before their head.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator

import numpy as np

import uncork
from benchmarks.heads import REAL, real_path
from uncork.domain import Image

PLAIN = uncork.Box(100)
MADE = {  # the values that can leave an activation
    "SELU": uncork.Box(-1.7581, np.inf),
    "SiLU": uncork.Box(-0.27846607565879822, np.inf),
    "GELU": uncork.Box(-0.17, np.inf),
    "ReLU": uncork.Box(0, np.inf),
    "tanh": uncork.Box(-1, 1),
    "sigmoid": uncork.Box(0, 1),
    "ReLU6": uncork.Box(0, 6),
}


def made_heads() -> Iterator[tuple[str, uncork.Head]]:
    """Rows around a shared mean with a decaying spectrum, and a bias: some of them lost."""
    rng = np.random.default_rng(0)
    for name, domain in MADE.items():
        yield f"{name}, 6962 x 128", _biased(rng, 6962, 128).replace(domain=domain)
    head = _biased(rng, 6962, 512)
    yield "SELU, 6962 x 512", head.replace(domain=MADE["SELU"])
    head = _biased(rng, 1000, 1280)
    yield "ReLU6, 1000 x 1280", head.replace(domain=MADE["ReLU6"])
    head = _biased(rng, 6962, 80)
    layer = rng.standard_normal((80, 160)).astype(np.float32) / 12
    image = Image(MADE["SiLU"], layer, rng.standard_normal(80).astype(np.float32))
    yield "linear layer after SiLU, 6962 x 80", head.replace(domain=image)


def _biased(rng: np.random.Generator, classes: int, features: int) -> uncork.Head:
    spectrum = (1 + np.arange(features) / (features / 20)) ** -0.75
    rows = rng.standard_normal((classes, features)) * spectrum * rng.uniform(0.5, 1, (classes, 1))
    rows = rows + 0.3 * rng.standard_normal(features)
    return uncork.Head(rows.astype(np.float32), 0.1 * rng.standard_normal(classes))


def real_heads(files: list[str]) -> Iterator[tuple[str, uncork.Head]]:
    for name in REAL:
        yield name, uncork.load(real_path(name), domain="auto")
    for text in files:
        path, weight, domain = (*text.split(":", 2), "", "")[:3]
        yield text, uncork.load(path, weight=weight or None, domain=domain or "auto")


def measured(head: uncork.Head, domain: uncork.Domain) -> tuple[float, float, dict[str, int]]:
    wall, processor = time.perf_counter(), time.process_time()
    audit = uncork.audit(head, domain=domain, device="cpu")
    return time.perf_counter() - wall, time.process_time() - processor, audit.counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", metavar="FILE[:WEIGHT[:DOMAIN]]")
    parser.add_argument("--only", action="append", help="part of a head's name")
    parser.add_argument("--skip", action="append", default=[], help="part of a head's name")
    parser.add_argument("--repeat", type=int, default=1, help="turns, the shortest of which counts")
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    uncork.audit(_biased(rng, 2000, 64), device="cpu")  # warms up
    print(
        f"{'head':36}{'auto s':>8}{'+-100 s':>9}{'ratio':>7}"
        f"{'cpu s':>8}{'cpu 100':>9}{'ratio':>7}  lost, undecided"
    )
    for heads in (real_heads(options.files), made_heads()):
        for name, head in heads:
            if options.only and not any(part in name for part in options.only):
                continue
            if any(part in name for part in options.skip):
                continue
            turns = [
                (measured(head, head.domain), measured(head, PLAIN)) for _ in range(options.repeat)
            ]
            (wall, processor), (plain_wall, plain_processor) = (
                (min(turn[k][0] for turn in turns), min(turn[k][1] for turn in turns))
                for k in (0, 1)
            )
            counts, plain = turns[0][0][2], turns[0][1][2]
            print(
                f"{name[-35:]:36}{wall:8.2f}{plain_wall:9.2f}{wall / plain_wall:7.2f}"
                f"{processor:8.2f}{plain_processor:9.2f}{processor / plain_processor:7.2f}  "
                f"{counts['unargmaxable']}, {counts['undecided']}; "
                f"{plain['unargmaxable']}, {plain['undecided']}",
                flush=True,
            )


if __name__ == "__main__":
    main()
