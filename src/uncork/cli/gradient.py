"""What `uncork rank --gradient` reads and says: the share of a gradient that a head passes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from uncork import __version__
from uncork.cli.output import print_doubts
from uncork.core.errors import UncorkError
from uncork.core.head import Head
from uncork.core.reading import json_keys
from uncork.core.text import printable
from uncork.loading.outputs import read_outputs, read_targets
from uncork.theory.gradient import GradientShare, Output, expected_share


def tokens_in(
    hidden: str | None, targets: str | None, contexts: int | None
) -> tuple[np.ndarray, np.ndarray]:
    """Hidden states and targets from files; one file may hold both."""
    if hidden is None:
        raise UncorkError("--gradient needs tokens: give --hidden and --targets, or --data")
    states, wanted = read_outputs(Path(hidden)), read_targets(Path(targets or hidden))
    if len(wanted) != len(states):
        raise UncorkError(
            f"{targets or hidden} holds {len(wanted):,} targets for {len(states):,} hidden states"
        )
    return states[:contexts], wanted[:contexts]


def gradient_json(head: Head, output: Output, found: GradientShare) -> dict[str, Any]:
    """What `--json` writes."""
    used: dict[str, Any] = {"name": output.name}
    if output.is_sparse:
        used["alpha"] = output.alpha
    if output.name == "alpha-relu":
        used["tau"] = output.tau
    return {
        "uncork": __version__, "source": head.source, "fingerprint": head.fingerprint,
        "output": used, **found.to_dict(), "reading": json_keys(head.reading),
    }  # fmt: skip


def print_gradient(out: Console, head: Head, output: Output, found: GradientShare) -> None:
    """The same for people."""
    out.print(printable(head.source), soft_wrap=True)
    print_doubts(out, head.reading)
    facts = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    facts.add_column(style="bold", no_wrap=True)
    facts.add_column(overflow="fold")
    for name, text in _facts(head, output, found):
        facts.add_row(name, text)
    out.print(facts)
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    for title in ("target occurs", "tokens", "passes", "lost", "cosine of a step"):
        table.add_column(title, justify="right")
    for row in found.by_frequency():
        low, high = row["from"], row["to"]
        times = f"{low:,}" if low == high else f"{low:,} to {high:,}"
        shares = (f"{row['share']:.2%}", f"{row['lost']:.2%}", f"{row['step']:.3f}")
        table.add_row(f"{times} times", f"{row['tokens']:,}", *shares)
    out.print(table)


def _facts(head: Head, output: Output, found: GradientShare) -> Iterator[tuple[str, str]]:
    random = expected_share(found.classes, found.rank)
    yield "head", f"{head.classes:,} classes × {head.features:,} features"
    yield "output", f"{output.name}, {len(found.targets):,} tokens"
    yield "passes", f"{_spread(found.share)} of the gradient's norm"
    yield "lost", _spread(found.lost)
    yield (
        "of a random one",
        (f"{random:.2%} would pass: {found.rank:,} of {found.classes:,} directions"),
    )
    yield "at best", f"{found.best:.2%} of these gradients would, for any head of this rank"
    yield "a step of h", f"moves the logits at a cosine of {_plain(found.step)} to the gradient"
    yield (
        "target's logit",
        (f"rises {_plain(found.target)} times as far as in a free step of the same length"),
    )
    yield "effective rank", f"{found.effective_rank:,.1f} (gradients of the first tokens)"
    asked = np.isfinite(found.support_share)
    if asked.any():
        yield (
            "support",
            (
                f"{found.support.mean():,.1f} classes have a gradient; of theirs alone "
                f"{found.support_share[asked].mean():.2%} can be followed"
            ),
        )


def _spread(values: np.ndarray) -> str:
    low, high = np.quantile(values, (0.05, 0.95))
    return f"{values.mean():.2%} (90 % of tokens: {low:.2%} to {high:.2%})"


def _plain(values: np.ndarray) -> str:
    low, high = np.quantile(values, (0.05, 0.95))
    return f"{values.mean():.3f} ({low:.3f} to {high:.3f})"
