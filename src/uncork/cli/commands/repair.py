"""`uncork repair`: the smallest edit of a head that makes its classes argmaxable, proven."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from uncork import __version__
from uncork.auditing import Audit
from uncork.auditing.backend import choose_backend
from uncork.auditing.low_precision import low_precision
from uncork.auditing.run import check_time_limit
from uncork.cli import options
from uncork.cli.changed_copy import drafted, put_in_place, read_back
from uncork.cli.help import INPUT, OUTPUT
from uncork.cli.output import console, emit_json, print_doubts, progress_bar, some_labels
from uncork.cli.parameters import Reads, Was, Writes
from uncork.cli.silencing import Silencing
from uncork.core.errors import UncorkError
from uncork.core.head import Head
from uncork.core.reading import json_keys
from uncork.core.text import printable
from uncork.core.whole_file import whole_file
from uncork.loading.chosen_classes import chosen_classes
from uncork.loading.source import Found
from uncork.repair import Repair
from uncork.repair import repair as repaired
from uncork.repair.changed_predictions import Price, price, read_inputs
from uncork.repair.margin import check_margin
from uncork.repair.proven import audit_repaired, witnesses_of
from uncork.save import check_format, write_head

_CHANGE = "What to change"


class How(str, Enum):
    """What is edited."""

    bias = "bias"
    row = "row"


class Norm(str, Enum):
    """Which norm of the bias's change is kept small."""

    inf = "inf"
    one = "1"


def repair(
    source: Annotated[
        str,
        typer.Argument(help="Model file to repair a copy of.", metavar="SOURCE"),
        Reads("the model"),
    ],
    out: Annotated[
        str,
        typer.Option(
            "-o",
            "--output",
            help="The repaired copy: same format as SOURCE, or .npz for the head alone.",
            metavar="FILE",
            rich_help_panel=OUTPUT,
        ),
        Writes("-o"),
        Was("--out"),
    ],
    tensors: options.Tensors,
    run: options.LimitedRun,
    labels: options.Labels = None,
    audit: Annotated[
        str | None,
        typer.Option(
            help="An earlier audit of SOURCE (written by uncork audit --certificates), so that it "
            "need not be repeated.",
            metavar="FILE",
            rich_help_panel=INPUT,
        ),
        Reads("the audit"),
    ] = None,
    activations: Annotated[
        str | None,
        typer.Option(
            help="Hidden states to count changed predictions on: .npy, or the .npz that uncork "
            "activations --sample wrote.",
            metavar="FILE",
            rich_help_panel=INPUT,
        ),
        Reads("the hidden states"),
    ] = None,
    domain: options.Domain = None,
    classes: options.Classes = None,
    how: Annotated[
        How,
        typer.Option(
            help="bias: change biases. row: move the rows of unargmaxable classes.",
            rich_help_panel=_CHANGE,
        ),
    ] = How.bias,
    norm: Annotated[
        Norm,
        typer.Option(
            help="bias: keep the largest change small, or the sum of all changes.",
            rich_help_panel=_CHANGE,
        ),
    ] = Norm.inf,
    margin: Annotated[
        float | None,
        typer.Option(
            help="By how much freed classes must lead, in logits; 0: by any amount, and --how bias "
            "moves no row.",
            show_default="what the model's own type resolves",
            metavar="LOGITS",
            rich_help_panel=_CHANGE,
        ),
    ] = None,
    silence: Annotated[
        str | None,
        typer.Option(
            help="Instead: lower biases until these classes can never be first: padding, reserved, "
            "special, 0-99,500, or @FILE. With -o FILE.json, write a mask for transformers.",
            metavar="WHICH",
            rich_help_panel=_CHANGE,
        ),
        Reads("the classes to silence"),
    ] = None,
    certificates: Annotated[options.Certificates, Was("--proofs")] = None,
    json_file: options.Json = None,
) -> None:
    """Make classes argmaxable by the smallest edit, or silence them.

    Writes a repaired copy and proves every class of it again; --certificates keeps these proofs.
    Exit status 1, and nothing written, if a class that should be argmaxable (or silent) is not.
    Examples: uncork repair model.onnx -o repaired.onnx; uncork repair model.onnx -o silent.onnx
    --silence padding
    """
    for option, name in (("--activations", activations), ("--audit", audit)):
        if name == "":
            raise UncorkError(f"{option}: the name is empty: give a file")
    check_margin(margin)
    check_time_limit(run.time_limit)
    options.check_domain(domain)
    if silence is not None:
        others = {"--classes": classes, "--audit": audit, "--how": how is How.row or None,
                  "--norm": norm is Norm.one or None}  # fmt: skip
        if wrong := [option for option, value in others.items() if value is not None]:
            raise UncorkError(f"{wrong[0]} frees classes, and --silence does not: give one of them")
        asked = Silencing(silence, out, run, margin, activations, certificates, json_file)
        if not asked.do(tensors.find(source, labels=labels, domain=domain)):
            raise typer.Exit(1)
        return
    found = tensors.find(source, labels=labels, domain=domain)
    head = found.head
    _check_not_an_earlier_audit(certificates, head)
    check_format(found, out, needs_bias=how is How.bias)
    _rehearse(found, out)
    chosen = None if classes is None else chosen_classes(classes, head, found.vocabulary)
    states = None if activations is None else read_inputs(activations, head.features)
    known = None if audit is None else _known(audit, head)
    with drafted(out, "unproven") as draft:
        with progress_bar(run.quiet) as bar:
            working = {**run.on(), "progress": bar, "time_limit": run.time_limit}
            made = repaired(
                head, chosen, how=how.value, norm=norm.value, margin=margin, audit=known, **working
            )
            done = not len(made.left)
            proven, changed = made.audit, made.head(head)
            if done:
                proven, changed, done = _write_and_prove(found, made, draft, working)
        cost = None
        if done:
            given = witnesses(made, head) if states is None else states
            cost = price(head, changed, given, made.freed) if len(given) else None
        backend = choose_backend(**run.on())
        low = low_precision(changed, proven.proofs, backend, head.domain)
        result = _described(
            head, made, proven, changed, cost, activations, low, out if done else None
        )
        with ExitStack() as appearing:  # at its end, so that Ctrl-C leaves all of it or nothing
            if done and certificates is not None:
                proven.save(appearing.enter_context(whole_file(certificates)))
            if json_file is not None and json_file != "-":
                emit_json(result, str(appearing.enter_context(whole_file(json_file))))
            if done:
                put_in_place(draft, out)
    if json_file == "-":
        emit_json(result, json_file)
    else:
        _print(head, made, result, cost, activations)
    if not done:
        raise typer.Exit(1)


def _rehearse(found: Found, out: str) -> None:
    """Raises before any work if the file's head cannot be replaced (it is quantised, say)."""
    with drafted(out, "rehearsal") as draft:
        write_head(found, np.asarray(found.head.weight), found.head.offsets, draft)


def _check_not_an_earlier_audit(certificates: str | None, head: Head) -> None:
    """--certificates once named the earlier audit: do not overwrite that."""
    try:
        there = None if certificates is None else Audit.load(certificates)
    except UncorkError:  # no file yet, or another one
        return
    if there is not None and there.fingerprint == head.fingerprint:
        raise UncorkError(
            f"--certificates {certificates} would overwrite an audit of SOURCE: --audit reads it"
        )


def _known(path: str, head: Head) -> Audit:
    """An audit from a file, every proof in it checked."""
    from uncork.auditing.certify.certifier import Certifier
    from uncork.auditing.certify.verify import verify_proofs

    known = Audit.load(path, head)
    if known.fingerprint != head.fingerprint or known.domain != head.domain:
        raise UncorkError(f"--audit {path} is of another head or another domain")
    backend = choose_backend("cpu")
    failed = verify_proofs(Certifier(head, head.domain, backend), known.proofs, backend).failed
    if len(failed):
        raise UncorkError(f"--audit {path}: {len(failed):,} proofs do not hold")
    return known


def witnesses(made: Repair, head: Head) -> np.ndarray:
    """Inputs (n, d) at which classes that were argmaxable before won: they stand in for hidden
    states where none are given."""
    others = np.setdiff1d(np.arange(head.classes), made.freed)
    inputs = made.inputs[others]
    inputs = inputs[np.isfinite(inputs).all(axis=1)]
    view = head.domain.affine(head.features)
    return view.image(inputs) if view.steps else inputs


def _write_and_prove(
    found: Found, made: Repair, draft: Path, working: dict[str, Any]
) -> tuple[Audit, Head, bool]:
    """Audits what a reader of the written file finds; and whether that is proven."""
    write_head(found, np.asarray(made.weight), made.bias, draft)
    changed = read_back(found, made, draft)
    asked = made.audit.asked
    wanted = None
    if asked is not None:
        wanted = np.zeros(changed.classes, dtype=bool)
        wanted[asked] = True
    proven = audit_repaired(
        changed, witnesses_of(made.audit, made.head(found.head)), wanted=wanted, **working
    )
    good = np.union1d(proven.argmaxable, proven.tied)
    was = np.union1d(made.audit.argmaxable, made.audit.tied)
    return proven, changed, len(np.setdiff1d(was, good)) == 0


def _described(
    head: Head,
    made: Repair,
    proven: Audit,
    changed: Head,
    cost: Price | None,
    states: str | None,
    low: dict[str, Any] | None,
    written: str | None,
) -> dict[str, Any]:
    change = changed.offsets - head.offsets
    moved = np.zeros(head.classes)
    if changed.weight is not head.weight:
        for start, block in head.blocks(8192):
            after = changed.rows(start, start + len(block))
            moved[start : start + len(block)] = np.linalg.norm(after - block, axis=1)
    result: dict[str, Any] = {
        "uncork": __version__, "source": head.source, "fingerprint": head.fingerprint,
        "repaired_fingerprint": changed.fingerprint, "classes": head.classes,
        "features": head.features, "dtype": head.dtype, "domain": str(head.domain),
        "how": made.how, "norm": made.norm if made.how == "bias" else None,
        "freed": [{"class": int(t), "label": head.label(int(t)), "raised": float(change[t]),
                   "moved": float(moved[t])} for t in made.freed],
        "left": [int(t) for t in made.left], "size": made.size, "needed": made.needed,
        "margin": made.margin, "touching": made.touching if made.how == "bias" else None,
        "within_margin": [int(t) for t in np.intersect1d(made.faint, made.freed)],
        "bias_change": [float(change.min()), float(np.median(change)), float(change.max())],
        "rows_moved": int((moved > 0).sum()), "largest_move": float(moved.max(initial=0.0)),
        "counts": {name: int(count) for name, count in proven.counts.items()},
        "tied": [int(t) for t in proven.tied], "notes": list(made.notes),
        "price": None if cost is None else {**asdict(cost), "share": cost.share,
                                            "states": states or "witnesses of the audit"},
        "written": written, "reading": json_keys(head.reading),
        "seconds": {name: float(s) for name, s in proven.seconds.items()},
    }  # fmt: skip
    if low is not None:
        weak = np.intersect1d([*low["tying"], *low["losing"]], made.freed)
        result["low_precision"] = {"dtype": low["dtype"], "freed_not_told_apart": len(weak)}
    return result


def _print(
    head: Head, made: Repair, result: dict[str, Any], cost: Price | None, states: str | None
) -> None:
    to = console()
    to.print(
        f"{printable(head.source)}: {head.classes:,} classes × {head.features} features, "
        f"{head.dtype}; inputs in {head.domain}",
        soft_wrap=True,
    )
    print_doubts(to, head.reading)
    if not len(made.freed) and not len(made.left):
        to.print("nothing to repair: every class asked for is argmaxable or tied already")
    elif made.how == "bias":
        what = "largest change" if made.norm == "inf" else "smallest sum of changes found"
        to.print(
            f"{len(made.freed):,} classes freed by the bias; {what}, up to a common constant: "
            f"{made.size:.6g}. Of this {made.touching:.6g} brings them to a tie, the rest gives "
            f"them the lead; proven: no change of biases below {made.needed:.6g} brings even a tie",
            soft_wrap=True,
        )
        if made.parted:
            to.print(
                f"{result['rows_moved']:,} rows are too close to others for a bias to tell them "
                f"apart in {head.dtype}: they were moved too, by at most {made.parted:.3g} "
                "(--margin 0 moves none)",
                soft_wrap=True,
            )
    else:
        to.print(
            f"{len(made.freed):,} classes freed by moving {result['rows_moved']:,} rows; longest "
            f"move {made.size:.6g}, the shortest that was found; proven: while the rows of "
            f"argmaxable classes stay in place, some row has to move by at least {made.needed:.3g}",
            soft_wrap=True,
        )
    if result["within_margin"]:
        to.print(
            f"{len(result['within_margin']):,} of them lead by less than the margin: no edit "
            "was found that gives them more",
            soft_wrap=True,
        )
    if len(made.freed):
        to.print(f"freed: {some_labels(head, made.freed)}", soft_wrap=True)
    for line in made.notes:
        to.print(f"note: {line}", soft_wrap=True)
    counts = ", ".join(f"{n:,} {name}" for name, n in result["counts"].items() if n)
    to.print(f"afterwards, proven: {counts}")
    if len(made.left):
        to.print(f"not freed: {some_labels(head, made.left)}", soft_wrap=True)
    if result["tied"]:
        to.print("tied classes have equal rows, which no bias can tell apart")
    weak = result.get("low_precision", {}).get("freed_not_told_apart", 0)
    if weak:
        to.print(
            f"{weak:,} of the freed classes win by less than {head.dtype} arithmetic resolves: "
            "first in exact arithmetic, but not when the model runs",
            soft_wrap=True,
        )
    if cost is not None:
        where = f"of {cost.inputs:,} hidden states of {printable(states)}" if states else (
            f"of the {cost.inputs:,} inputs at which classes were known to win"
        )  # fmt: skip
        to.print(
            f"price: {cost.changed:,} predictions change {where} ({cost.share:.3%}), "
            f"{cost.to_freed:,} of them to freed classes",
            soft_wrap=True,
        )
    if result["written"] is not None:
        to.print(f"written to {printable(result['written'])}", soft_wrap=True)
    else:
        to.print("not every class was freed and proven: nothing was written")
        if made.how == "row":
            to.print("moved rows blocked one another: try fewer --classes, or --how bias")
