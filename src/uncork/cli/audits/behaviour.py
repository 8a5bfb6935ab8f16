"""`uncork audit --check MODEL --data …`: the model's behaviour compared with the audit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from uncork.auditing import Audit
from uncork.cli.output import progress_bar, shown
from uncork.core.errors import UncorkError
from uncork.core.head import Head
from uncork.core.text import printable

if TYPE_CHECKING:
    from uncork.activations import Runner
    from uncork.activations.behaviour import Behaviour

_MOST_CLASSES = 10


class BehaviourCheck:
    """What was asked for. `prepare` opens model and data: a mistake shows before the work."""

    def __init__(self, model: str | None, data: Sequence[str] | None) -> None:
        if (model is None) != (not data):
            missing = "--check MODEL" if model is None else "--data FILE"
            raise UncorkError(f"--check and --data go together: {missing} is missing")
        self.model, self.data = model, list(data or [])
        self.runner: Runner | None = None
        self.behaviour: Behaviour | None = None

    def prepare(self, head: Head) -> None:
        if self.model is None:
            return
        from uncork.activations import open_runner
        from uncork.activations.behaviour import check_same_head

        self.runner = open_runner(self.model, self.data)
        check_same_head(head, self.runner.head, self.model)

    def run(self, audit: Audit, head: Head, quiet: bool) -> None:
        """Run the model over the data. Ctrl-C raises KeyboardInterrupt."""
        if self.runner is None:
            return
        from uncork.activations import Stopped, record
        from uncork.activations.behaviour import Behaviour

        self.behaviour = Behaviour(audit, head, self.runner.unit)
        try:
            with progress_bar(quiet) as bar:
                record(self.runner, progress=bar, watch=[self.behaviour])
        except Stopped:
            raise KeyboardInterrupt from None

    @property
    def failed(self) -> bool:
        return self.behaviour is not None and not self.behaviour.ok

    def extra(self) -> dict[str, Any]:
        """For the audit's JSON."""
        if self.behaviour is None:
            return {}
        return {"check": {"model": self.model, "data": self.data, **self.behaviour.as_dict()}}

    def print(self, out: Console) -> None:
        found = self.behaviour
        if found is None or self.model is None or self.runner is None:
            return
        outside = found.inputs - found.inside
        out.print(
            f"\nbehaviour of {printable(Path(self.model).name)} on {self.runner.total:,} items, "
            f"{found.inputs:,} inputs of the head:", soft_wrap=True,
        )  # fmt: skip
        out.print(f"  {found.inside:>9,} inside the domain, {outside:,} outside")
        seen = int((found.seen > 0).sum())
        out.print(f"  {seen:>9,} of {found.head.classes:,} classes ever came first")
        unargmaxable = int(found.lost.sum())
        out.print(
            f"  {found.contradicted:>9,} predictions of the {unargmaxable:,} classes proven "
            "unargmaxable, inside the domain"
        )
        if found.rounded:
            out.print(
                f"  {found.rounded.total():>9,} more where such a class was first only in the "
                "model's rounding: in real numbers another is at or above it:"
            )
            _list(out, found.rounded, found)
        if outside:
            out.print(f"  {outside:>9,} inputs outside, about which nothing is claimed, put first:")
            _list(out, found.outside, found)
        if found.shared:
            out.print(
                f"  {found.shared:>9,} times classes shared first place: equal logits in the "
                "model's own type; the lowest id counts as first"
            )
        if found.ok:
            out.print("behaviour agrees with the proofs")
            return
        out.print("BEHAVIOUR CONTRADICTS THE PROOFS:", style="bold")
        for example in found.contradictions[:_MOST_CLASSES]:
            edge = "" if example["inside_exactly"] else " (inside the domain up to rounding)"
            out.print(
                f"  class {example['class']} {shown(example['label'])} came first by "
                f"{example['margin']:.3g}{edge}"
            )
        out.print("uncork read the model wrongly or has a bug: please report it")


def _list(out: Console, counts: Any, found: Behaviour) -> None:
    named = found.audit.labels is not None
    for t, times in counts.most_common(_MOST_CLASSES):
        label = f" {shown(found.audit.label(t))}" if named else ""
        proven = ", proven unargmaxable inside" if found.lost[t] else ""
        out.print(f"              class {t}{label}: {times:,} times{proven}")
    rest = len(counts) - _MOST_CLASSES
    if rest > 0:
        out.print(f"              and {rest:,} more")
