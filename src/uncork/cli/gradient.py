"""What `uncork rank --gradient` reads and says: the share of a gradient that a head passes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from uncork import __version__
from uncork.cli.output import print_doubts
from uncork.core.errors import UncorkError
from uncork.core.head import Head
from uncork.core.progress import Progress
from uncork.core.reading import json_keys
from uncork.core.text import printable
from uncork.loading.outputs import read_outputs, read_targets
from uncork.loading.safetensors.file import read_safetensors
from uncork.theory.gradient import OUTPUTS, GradientShare, Output, Passage, expected_share

MIXTURE = "mos"  # the name of the head, of a saved model, that has several softmaxes


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


def own_head(source: str) -> dict[str, Any]:
    """The head of uncork.nn that a saved model says it has; nothing where it says none."""
    path = Path(source) / "config.json"
    try:
        found = json.loads(path.read_text("utf-8")).get("uncork_head") if path.is_file() else None
    except (OSError, ValueError, AttributeError):
        return {}
    return dict(found) if isinstance(found, Mapping) else {}


def output_of(source: str, name: str | None, alpha: float | None, tau: float | None) -> Output:
    """What was asked for; where nothing was, what the saved model's own head is trained with."""
    own = own_head(source)
    if name is None and own.get("name") in OUTPUTS:
        name = str(own["name"])
        alpha = own.get("alpha") if alpha is None else alpha
        tau = _stored_tau(Path(source)) if tau is None and name == "alpha-relu" else tau
    return Output(name or "softmax", 1.5 if alpha is None else float(alpha), tau or 0.0)


def _stored_tau(folder: Path) -> float | None:
    for path in sorted(folder.glob("*.safetensors")):
        for name, tensor in read_safetensors(path).tensors.items():
            if name.endswith(".tau"):
                return float(tensor.read().reshape(()))
    return None


def mixture_share(
    source: str, data: Sequence[str], contexts: int, progress: Progress
) -> tuple[Head, GradientShare]:
    """Of a saved language model with a mixture of softmaxes: the logits of all its components.
    Effective ranks are not asked for."""
    from uncork.activations.data import Lines, files_of
    from uncork.nn.transformers.passing import passing_over

    lines = Lines(files_of(data))
    progress.stage("tokens", contexts)
    weight, bias, found, targets = passing_over(
        source, lines.between(0, lines.total), contexts, progress.advance
    )
    head, nothing = Head(weight, bias, source=source), np.full(len(targets), np.nan)
    columns = {
        name: getattr(found, name).cpu().double().numpy()
        for name in ("norm", "share", "step", "target", "support")
    }
    return head, GradientShare(
        targets=targets, **columns, both=nothing, support_share=nothing,
        rank=Passage.of(head).rank, classes=head.classes, features=head.features,
        effective_rank=float("nan"), best=float("nan"),
    )  # fmt: skip


def gradient_json(head: Head, output: Output | None, found: GradientShare) -> dict[str, Any]:
    """What `--json` writes."""
    used: dict[str, Any] = {"name": MIXTURE if output is None else output.name}
    if output is not None and output.is_sparse:
        used["alpha"] = output.alpha
    if output is not None and output.name == "alpha-relu":
        used["tau"] = output.tau
    return {
        "uncork": __version__, "source": head.source, "fingerprint": head.fingerprint,
        "output": used, **found.to_dict(), "reading": json_keys(head.reading),
    }  # fmt: skip


def print_gradient(out: Console, head: Head, output: Output | None, found: GradientShare) -> None:
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
        table.add_row("once" if times == "1" else f"{times} times", f"{row['tokens']:,}", *shares)
    out.print(table)


def _facts(head: Head, output: Output | None, found: GradientShare) -> Iterator[tuple[str, str]]:
    random = expected_share(found.classes, found.rank)
    yield "head", f"{head.classes:,} classes × {head.features:,} features"
    name = "mixture of softmaxes" if output is None else output.name
    yield "output", f"{name}, {len(found.targets):,} tokens"
    yield "passes", f"{_spread(found.share)} of the gradient's norm"
    yield "lost", _spread(found.lost)
    yield (
        "of a random one",
        (f"{random:.2%} would pass: {found.rank:,} of {found.classes:,} directions"),
    )
    if np.isfinite(found.best):
        yield "at best", f"{found.best:.2%} of these gradients would, for any head of this rank"
    yield "a step of h", f"moves the logits at a cosine of {_plain(found.step)} to the gradient"
    if np.isfinite(found.both).all():
        yield "with W's own", f"step too, the cosine is {_plain(found.both)}"
    if np.isfinite(found.target).all():
        yield (
            "target's logit",
            f"rises {_plain(found.target)} times as far as in a free step of the same length",
        )
    if np.isfinite(found.effective_rank):
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
