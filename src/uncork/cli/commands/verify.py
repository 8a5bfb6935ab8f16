"""`uncork verify`: check every proof in a certificate file against the weights."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from uncork import __version__
from uncork.auditing import Audit, Verification
from uncork.auditing.backend import choose_backend
from uncork.auditing.certify.verify import verify as check
from uncork.cli import options
from uncork.cli.output import console, emit_json, print_doubts, progress_bar, shown
from uncork.cli.parameters import Reads
from uncork.core.errors import UncorkError
from uncork.core.head import Head
from uncork.core.items import METRICS, Items
from uncork.core.reading import json_keys, words_of
from uncork.core.text import printable
from uncork.labels.archive import holds_label_sets
from uncork.labels.result import LabelAudit
from uncork.labels.verify import verify_sets
from uncork.loading.contents import Contents
from uncork.loading.vectors.items import find_items
from uncork.retrieval.archive import holds_retrieval, metric_of
from uncork.retrieval.result import Retrieval
from uncork.retrieval.verify import verify_retrieval

_MOST_FAILED = 20


def verify(
    certificates: Annotated[
        str,
        typer.Argument(
            help="File that uncork audit, labels or retrieve wrote.", metavar="CERTIFICATES"
        ),
        Reads("the certificates"),
    ],
    source: options.Source,
    tensors: options.Tensors,
    run: options.Run,
    drop_bias: options.DropBias = False,
    labels: options.Labels = None,
    json_file: options.Json = None,
) -> None:
    """Check every certificate against the weights, without a solver.

    Nothing that the certificates' author computed is trusted. The domain is the one that the
    certificates name. Exit status 1 if any proof fails, or if they are about other weights.
    Example: uncork verify proofs.npz model.onnx
    """
    began = time.perf_counter()
    contents = tensors.open(source)
    if holds_retrieval(certificates):
        _verify_retrieval(certificates, source, contents, tensors, run, json_file, began)
        return
    items = tensors.items(contents, labels)
    if items is not None:
        _verify_items(certificates, source, items.items, run, json_file, began)
        return
    head = tensors.find(source, drop_bias=drop_bias, labels=labels, contents=contents).head
    if holds_label_sets(certificates):
        _verify_label_sets(certificates, source, head, run, json_file, began)
        return
    audit = Audit.load(certificates, head)
    other = _another_head(audit, head, drop_bias)
    if other is None:
        with progress_bar(run.quiet) as bar:
            bar.stage("verifying", sum(audit.counts.values()) - audit.counts["undecided"])
            found = check(audit, head, **run.on(), tick=bar.advance)
    else:
        found = Verification()
    _report(_result(certificates, source, audit, head, found, other, began), head, json_file)


def _result(
    certificates: str,
    source: str,
    audit: Audit,
    head: Head | Items,
    found: Verification,
    other: str | None,
    began: float,
) -> dict[str, Any]:
    """What was checked, as plain values; `other` says why the proofs are about something else."""
    return {
        "uncork": __version__,
        "certificates": certificates,
        "source": source,
        "fingerprint": audit.fingerprint,
        "metric": audit.metric,
        "domain": audit.domain.spec(),
        "reading": json_keys(head.reading),
        "ok": found.ok and other is None,
        "held": found.held,
        "failed": [
            {"class": t, "label": head.label(t), "reason": why}
            for t, why in sorted(found.failed.items())
        ],
        "undecided": audit.counts["undecided"],
        "altered": found.altered,
        "reason": other,
        "seconds": round(time.perf_counter() - began, 6),
    }


def _report(result: dict[str, Any], head: Head | Items, json_file: str | None) -> None:
    if json_file is not None:
        emit_json(result, json_file)
    if json_file != "-":
        _print(result, head)
    if not result["ok"]:
        raise typer.Exit(1)


def _verify_items(
    certificates: str,
    source: str,
    items: Items,
    run: options.Run,
    json_file: str | None,
    began: float,
) -> None:
    """The same for certificates of items compared by cosine or Euclidean distance."""
    if holds_label_sets(certificates):
        raise UncorkError(f"{certificates} is about label sets, and {source} holds items")
    audit = Audit.load(certificates, items)
    other = None
    if audit.fingerprint != items.fingerprint:
        other = (
            f"they are for other vectors or another metric: {audit.fingerprint[:19]}… by "
            f"{METRICS[audit.metric]}, not {items.fingerprint[:19]}… by {items.metric_in_words}"
        )
    found = Verification()
    if other is None:
        with progress_bar(run.quiet) as bar:
            bar.stage("verifying", len(items))
            found = check(audit, items, tick=bar.advance)
    _report(_result(certificates, source, audit, items, found, other, began), items, json_file)


def _verify_retrieval(
    certificates: str,
    source: str,
    contents: Contents,
    tensors: options.Tensors,
    run: options.Run,
    json_file: str | None,
    began: float,
) -> None:
    """The same for certificates of a retrieval, under the metric that they name."""
    metric = tensors.as_dict()["metric"] or metric_of(certificates)
    items = find_items(
        contents, metric=metric, vectors=tensors.weight, transpose=tensors.transpose
    ).items
    claimed = Retrieval.load(certificates, items)
    with progress_bar(run.quiet) as bar:
        bar.stage("verifying", len(claimed.judgements))
        found = verify_retrieval(claimed, items, tick=bar.advance)
    names = claimed.judgements.queries
    result = {
        "uncork": __version__, "certificates": certificates, "source": source,
        "fingerprint": claimed.fingerprint, "metric": claimed.metric,
        "domain": claimed.domain.spec(), "reading": json_keys(items.reading), "ok": found.ok,
        "held": found.held,
        "failed": [{"query": names[q], "reason": why} for q, why in sorted(found.failed.items())],
        "undecided": len(claimed.undecided), "seconds": round(time.perf_counter() - began, 6),
    }  # fmt: skip
    if json_file is not None:
        emit_json(result, json_file)
    if json_file != "-":
        out = console()
        out.print(
            f"{printable(source)}: {len(items):,} items × {items.features:,} features, compared by "
            f"{items.metric_in_words}; queries in {printable(claimed.domain.spec())}",
            soft_wrap=True,
        )
        print_doubts(out, items.reading)
        what = {
            "possible": "possible: the proof holds", "impossible": "impossible: the proof holds",
            "bounds": f"bounds on how many are among the first {claimed.k}: the proofs hold",
        }  # fmt: skip
        for name, count in found.held.items():
            out.print(f"  {count:>9,} {what[name]}")
        if len(claimed.undecided):
            out.print(f"  {len(claimed.undecided):>9,} undecided: nothing is claimed")
        if found.failed:
            out.print(f"  {len(found.failed):>9,} FAILED:")
            for q, why in sorted(found.failed.items())[:_MOST_FAILED]:
                out.print(f"    query {shown(names[q])}: {why}", soft_wrap=True)
        verdict = "every proof holds" if found.ok else "NOT VERIFIED"
        out.print(f"{verdict} ({result['seconds']:.2f} s)")
    if not found.ok:
        raise typer.Exit(1)


def _verify_label_sets(
    certificates: str,
    source: str,
    head: Head,
    run: options.Run,
    json_file: str | None,
    began: float,
) -> None:
    """The same for certificates of label sets."""
    audit = LabelAudit.load(certificates, head)
    with progress_bar(run.quiet) as bar:
        bar.stage("verifying", len(audit.sets) - len(audit.undecided))
        found = verify_sets(audit, head, device=choose_backend(**run.on()), tick=bar.advance)
    seconds = round(time.perf_counter() - began, 6)
    result = {
        "uncork": __version__, "certificates": certificates, "source": source,
        "fingerprint": audit.fingerprint, "domain": audit.domain.spec(),
        "reading": json_keys(head.reading), "ok": found.ok, "held": found.held,
        "failed": [
            {"set": k, "labels": audit.sets.on[k].tolist(), "reason": why}
            for k, why in sorted(found.failed.items())
        ],
        "undecided": len(audit.undecided), "seconds": seconds,
    }  # fmt: skip
    if json_file is not None:
        emit_json(result, json_file)
    if json_file != "-":
        out = console()
        out.print(
            f"{printable(source)}: {head.classes:,} labels × {head.features:,} features; "
            f"inputs in {printable(audit.domain.spec())}",
            soft_wrap=True,
        )
        print_doubts(out, head.reading)
        for verdict, count in found.held.items():
            out.print(f"  {count:>9,} {verdict} label sets: the proof holds")
        if len(audit.undecided):
            out.print(f"  {len(audit.undecided):>9,} undecided: nothing is claimed")
        if found.failed:
            out.print(f"  {len(found.failed):>9,} FAILED:")
            for k, why in sorted(found.failed.items())[:_MOST_FAILED]:
                names = ", ".join(shown(head.label(int(i))) for i in audit.sets.on[k][:8])
                out.print(f"    set {k} ({names or 'no label'}): {why}", soft_wrap=True)
        verdict = "every proof holds" if found.ok else "NOT VERIFIED"
        out.print(f"{verdict} ({seconds:.2f} s)")
    if not found.ok:
        raise typer.Exit(1)


def _another_head(audit: Audit, head: Head, dropped: bool) -> str | None:
    """Why the certificates say nothing about this head, or None."""
    if (audit.classes, audit.features) != (head.classes, head.features):
        return (
            f"they are for a head of {audit.classes:,} classes × {audit.features:,} features, "
            f"and this one has {head.classes:,} × {head.features:,}"
        )
    if audit.fingerprint == head.fingerprint:
        return None
    hint = ""
    if head.bias is not None and not audit.has_bias:
        hint = " (they are for a head without a bias: did you mean --drop-bias?)"
    elif dropped and audit.has_bias:
        hint = " (they are for the head with its bias: leave out --drop-bias?)"
    return (
        f"they are for other weights: {audit.fingerprint[:19]}…, not {head.fingerprint[:19]}…"
        + hint
    )


def _print(result: dict[str, Any], head: Head | Items) -> None:
    out, say = console(), words_of(head.reading).say
    if result["reason"] is not None:
        out.print(
            f"these certificates prove nothing about {printable(result['source'])}: "
            f"{printable(result['reason'])}",
            soft_wrap=True,
        )
        print_doubts(out, head.reading)
        return
    what = (
        f"{len(head):,} items × {head.features:,} features, compared by {head.metric_in_words}"
        if isinstance(head, Items)
        else say(f"{head.classes:,} classes × {head.features:,} features")
    )
    out.print(
        f"{printable(result['source'])}: {what}; {say('inputs')} in {printable(result['domain'])}",
        soft_wrap=True,
    )
    print_doubts(out, head.reading)
    for verdict, count in result["held"].items():
        out.print(f"  {count:>9,} {say(verdict)}: the proof holds")
    if result["undecided"]:
        out.print(f"  {result['undecided']:>9,} undecided: nothing is claimed")
    failed = result["failed"]
    if failed:
        out.print(f"  {len(failed):>9,} FAILED:")
        for item in failed[:_MOST_FAILED]:
            which = say(f"class {item['class']}")
            out.print(f"    {which} {shown(item['label'])}: {item['reason']}")
        if len(failed) > _MOST_FAILED:
            out.print(f"    and {len(failed) - _MOST_FAILED:,} more (--json lists them all)")
    if result["altered"]:
        out.print("  the file was changed after it was written: its digest does not match")
    verdict = "every proof holds" if result["ok"] else "NOT VERIFIED"
    out.print(f"{verdict} ({result['seconds']:.2f} s)")
