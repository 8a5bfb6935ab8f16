"""`uncork reach --above, --top-set, --prefix`: one question about the order, with its proof."""

from __future__ import annotations

import time
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from uncork import __version__
from uncork.cli.output import console, emit_json, print_doubts, shown
from uncork.core.errors import UncorkError
from uncork.core.head import Head
from uncork.core.reading import json_keys
from uncork.core.text import printable
from uncork.reach.sets import Arrangement, can_be_top, can_lead, can_rank_above

_LISTED = 12


@dataclass(frozen=True)
class Question:
    """Which option was given, and the classes it names, in its order."""

    option: str
    text: str

    @classmethod
    def of(cls, above: str | None, top_set: str | None, prefix: str | None) -> Question | None:
        given = {"--above": above, "--top-set": top_set, "--prefix": prefix}
        asked = [cls(option, text) for option, text in given.items() if text is not None]
        if len(asked) > 1:
            raise UncorkError(f"{asked[0].option} and {asked[1].option}: one question at a time")
        if asked:
            asked[0].classes()  # says what is wrong before a file is read
        return asked[0] if asked else None

    def classes(self) -> list[int]:
        parts = [part.strip() for part in self.text.split(",")]
        if not all(part.isascii() and part.isdigit() and len(part) < 18 for part in parts):
            raise UncorkError(
                f"{self.option} {printable(self.text[:40])}: expected class numbers, such as 3,17"
            )
        if self.option == "--above" and len(parts) != 2:
            raise UncorkError(f"{self.option} {printable(self.text[:40])}: expected two classes")
        return [int(part) for part in parts]


def answer(
    question: Question, head: Head, source: str, json_file: str | None, began: float
) -> bool:
    """Answer it; False where there is no proof either way."""
    classes = question.classes()
    if question.option == "--above":
        found = can_rank_above(head, classes[0], classes[1])
    elif question.option == "--top-set":
        found = can_be_top(head, classes)
    else:
        found = can_lead(head, classes)
    seconds = round(time.perf_counter() - began, 6)
    if json_file is not None:
        emit_json(_described(question, classes, found, head, source, seconds), json_file)
    if json_file != "-":
        _print(question, classes, found, head, source, seconds)
    return found.possible is not None


def _described(
    question: Question, classes: list[int], found: Arrangement, head: Head, source: str,
    seconds: float,
) -> dict[str, Any]:  # fmt: skip
    """The answer with its proof: weights are fractions, since some balance only exactly."""
    proof: dict[str, Any] | None = None
    if found.input is not None:
        proof = {"input": found.input.tolist()}
    elif found.pairs is not None:
        proof = {"pairs": found.pairs.tolist(), "weights": [str(w) for w in found.weights]}
    return {
        "uncork": __version__, "source": source, "fingerprint": head.fingerprint,
        "domain": str(head.domain), "reading": json_keys(head.reading),
        "asked": question.option.lstrip("-"), "classes": classes,
        "possible": found.possible, "proof": proof, "seconds": seconds,
    }  # fmt: skip


def _print(
    question: Question, classes: list[int], found: Arrangement, head: Head, source: str,
    seconds: float,
) -> None:  # fmt: skip
    out = console()
    out.print(
        f"{printable(source)}: {head.classes:,} classes × {head.features:,} features; "
        f"inputs in {printable(str(head.domain))}",
        soft_wrap=True,
    )
    print_doubts(out, head.reading)
    names = [_name(head, t) for t in classes]
    asked = {
        "--above": f"{names[0]} above {names[-1]}",
        "--top-set": "exactly {} at the top".format(", ".join(names)),
        "--prefix": "{} first, in this order".format(", ".join(names)),
    }[question.option]
    if found.possible is None:
        out.print(f"{asked}: not proven either way ({seconds:.2f} s)", soft_wrap=True)
    elif found.possible:
        out.print(f"{asked}: possible", soft_wrap=True)
        assert found.input is not None
        size = np.abs(found.input).max(initial=0.0)
        out.print(
            f"proof: an input, no entry above {size:.4g} in size (--json has it) ({seconds:.2f} s)"
        )
    else:
        out.print(f"{asked}: impossible", soft_wrap=True)
        assert found.pairs is not None
        heaviest = sorted(zip(found.weights, found.pairs.tolist(), strict=True), reverse=True)
        total = sum(found.weights, Fraction(0))
        out.print("proof: at every input the weighted sum of these leads is zero or less")
        for weight, (i, j) in heaviest[:_LISTED]:
            text = f"{float(weight / total):8.4f}  {_name(head, i)}"
            out.print(f"    {text}  over  {_name(head, j)}", soft_wrap=True)
        if len(heaviest) > _LISTED:
            out.print(f"    and {len(heaviest) - _LISTED:,} more (--json has them)")
        out.print(f"({seconds:.2f} s)")


def _name(head: Head, t: int) -> str:
    return f"{t}" if head.labels is None else f"{t} {shown(head.label(t))}"
