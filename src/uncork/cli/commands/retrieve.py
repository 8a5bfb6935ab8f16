"""`uncork retrieve`: for each query of a benchmark, can any vector rank its items on top?"""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console

from uncork.cli import options
from uncork.cli.audits.unfinished_sets import UnfinishedSets, progress
from uncork.cli.help import DECIDE, INPUT, RUN
from uncork.cli.output import console, emit_json, note, print_doubts, progress_bar, shown
from uncork.cli.parameters import Reads
from uncork.core.errors import UncorkError
from uncork.core.items import Items
from uncork.core.text import printable
from uncork.domain import Domain, Unbounded, parse_domain
from uncork.retrieval.decide import Interrupted
from uncork.retrieval.decide import retrieve as decide
from uncork.retrieval.examples import LIMIT_ITEMS, random_items
from uncork.retrieval.judgements import (
    Judgements,
    matched_queries,
    read_ids,
    read_judgements,
)
from uncork.retrieval.result import Retrieval

_LISTED = 10
_NAMED = 4


class Example(str, Enum):
    """A benchmark that comes with uncork."""

    limit = "limit"


def retrieve(
    array: options.Vectors,
    run: options.RunHere,
    real: options.Queries,
    vectors: Annotated[
        str | None,
        typer.Argument(help="Index or file of vectors, one an item.", metavar="VECTORS"),
        Reads("the vectors"),
    ] = None,
    qrels: Annotated[
        str | None,
        typer.Option(
            help="Relevance judgements: TREC (query 0 item relevance) or BEIR (tabs, a header).",
            metavar="FILE",
            rich_help_panel=INPUT,
        ),
        Reads("the judgements"),
    ] = None,
    every: Annotated[
        int | None,
        typer.Option(
            help="Instead of --qrels: every set of N items is a query's.",
            metavar="N",
            rich_help_panel=INPUT,
        ),
    ] = None,
    among: Annotated[
        int | None,
        typer.Option(
            help="With --every: sets of the first N items, before all items.",
            show_default="all",
            metavar="N",
            rich_help_panel=INPUT,
        ),
    ] = None,
    example: Annotated[
        Example | None,
        typer.Option(
            help="Instead of VECTORS: every pair of 46 random vectors, as in LIMIT (Weller et al. "
            "2025).",
            rich_help_panel=INPUT,
        ),
    ] = None,
    features: Annotated[
        int,
        typer.Option(
            "-d",
            "--features",
            help="With --example: features of a vector.",
            metavar="D",
            rich_help_panel=INPUT,
        ),
    ] = 8,
    seed: Annotated[
        int,
        typer.Option(
            help="With --example: the same seed draws the same vectors.",
            metavar="S",
            rich_help_panel=INPUT,
        ),
    ] = 0,
    labels: options.Labels = None,
    query_ids: Annotated[
        str | None,
        typer.Option(
            help="The name of each row of --queries: one a line, JSON, or BEIR's queries.jsonl.",
            metavar="FILE",
            rich_help_panel=INPUT,
        ),
        Reads("the query ids"),
    ] = None,
    domain: options.DomainOfQueries = None,
    k: Annotated[
        int,
        typer.Option("-k", help="How many places count.", metavar="K", rich_help_panel=DECIDE),
    ] = 10,
    min_relevance: Annotated[
        float,
        typer.Option(
            help="Judgements from this on are relevant.", metavar="R", rich_help_panel=DECIDE
        ),
    ] = 1.0,
    certificates: options.Certificates = None,
    fail_if_impossible: Annotated[
        bool,
        typer.Option(
            "--fail-if-impossible",
            help="Exit with status 1 if a query is impossible or undecided.",
            rich_help_panel=RUN,
        ),
    ] = False,
    json_file: options.Json = None,
    resume: options.Resume = False,
) -> None:
    """Decide what the queries of a benchmark can retrieve.

    For each query: can any vector rank its relevant items before all others, and how many of them
    can be among the first K? Both answers are proven. With --queries, the vectors that an encoder
    gives the queries: where they miss what another vector would find, the encoder is at fault, and
    where none can, the items' vectors are. Examples:
    uncork retrieve corpus.npy --labels corpus.jsonl --qrels test.tsv -k 10;
    uncork retrieve --example limit -d 8 -k 2
    """
    if k < 1:
        raise UncorkError(f"-k {k}: expected one or more")
    if (vectors is None) == (example is None):
        raise UncorkError("which vectors? give one of VECTORS and --example limit")
    if example is None and (qrels is None) == (every is None):
        raise UncorkError("which sets? give one of --qrels FILE and --every N")
    if example is not None and (qrels is not None or every is not None):
        raise UncorkError("--example brings its own sets: leave --qrels and --every out")
    if among is not None and every is None:
        raise UncorkError("--among says which items --every is about: give both")
    real.check(domain)
    if real.queries is None and query_ids is not None:
        raise UncorkError("--query-ids names vectors: add --queries FILE")
    given = None if domain is None else _plain(domain)
    if vectors is None:
        items = random_items(LIMIT_ITEMS, features, seed)
    else:
        items = array.find(vectors, None if labels is None else read_ids(labels))
    judgements = _judgements(items, example, qrels, every, among, min_relevance)
    own = _own(judgements, real.vectors(items.features), query_ids) if qrels is not None else None
    allowed = given or real.domain(items.features) or Unbounded()
    unfinished = UnfinishedSets(items, judgements, allowed, k)
    earlier = unfinished.earlier(resume, run.quiet)
    try:
        with progress_bar(run.quiet) as bar:
            found = decide(
                items, judgements, k=k, domain=allowed, queries=own, jobs=run.jobs,
                time_limit=run.time_limit, progress=bar, resume=earlier,
                checkpoint=unfinished.checkpoint,
            )  # fmt: skip
    except Interrupted as interrupted:
        unfinished.keep(interrupted.retrieval, "interrupted")
        raise typer.Exit(130) from None
    # Bounds that differ may be all there is; where time ran out, more of them may close.
    stopped = run.time_limit is not None and found.seconds["total"] >= run.time_limit
    stopped = stopped and progress(found) != (len(judgements), 0)
    if stopped:
        unfinished.keep(found, "the time limit was reached")
    try:
        if certificates is not None:
            found.save(certificates)
        if json_file is not None:
            emit_json(found.to_dict(), json_file)
    except (UncorkError, OSError, KeyboardInterrupt):
        if not stopped:
            unfinished.keep(found, "the result could not be written")
        raise
    done = earlier is not None or unfinished.saved or not len(found.undecided)
    if not stopped and done:
        unfinished.remove()
    if json_file != "-":
        _print(found, items, certificates)
    else:
        for line in judgements.notes:
            note(line)
    if fail_if_impossible and (len(found.impossible) or len(found.undecided)):
        raise typer.Exit(1)


def _plain(text: str) -> Domain:
    if text.strip() == "auto":
        raise UncorkError("--domain auto is for models: vectors do not show what queries there are")
    return parse_domain(text)


def _judgements(
    items: Items,
    example: Example | None,
    qrels: str | None,
    every: int | None,
    among: int | None,
    least: float,
) -> Judgements:
    if qrels is not None:
        return read_judgements(qrels, items, least)
    if example is not None:
        return Judgements.every(len(items), 2)
    count = len(items) if among is None else among
    if not 1 <= count <= len(items):
        raise UncorkError(f"--among {count}: there are {len(items):,} items")
    return Judgements.every(count, every or 0)


def _own(
    judgements: Judgements, vectors: np.ndarray | None, query_ids: str | None
) -> np.ndarray | None:
    """The vectors of the judged queries, in their order."""
    if vectors is None:
        return None
    return matched_queries(judgements, vectors, None if query_ids is None else read_ids(query_ids))


def _print(found: Retrieval, items: Items, certificates: str | None) -> None:
    out = console()
    out.print(
        f"{printable(found.source)}: {found.items:,} items × {found.features:,} features, compared "
        f"by {items.metric_in_words}; queries in {printable(str(found.domain))}",
        soft_wrap=True,
    )
    print_doubts(out, found.reading)
    for line in found.judgements.notes:
        out.print(line, soft_wrap=True)
    sizes = np.array([len(ids) for ids in found.judgements.relevant])
    each = f"{sizes.min()}" if sizes.min() == sizes.max() else f"{sizes.min()} to {sizes.max()}"
    queries = "query" if len(found.judgements) == 1 else "queries"
    relevant = "relevant item" if each == "1" else "relevant items"
    out.print(f"{len(found.judgements):,} {queries} with {each} {relevant}")
    meaning = {
        "possible": "some vector ranks the relevant items before all others",
        "impossible": "proven: no vector does",
        "undecided": "not proven either way",
    }
    for verdict, text in meaning.items():
        if found.counts[verdict] or verdict != "undecided":
            out.print(f"  {found.counts[verdict]:>9,} {verdict:<10}  {text}")
    low, high = found.recall
    reached = "and reached" if low == high else f"{low:.4g} is reached"
    out.print(
        f"at most {high:.4g} recall@{found.k} is possible with these vectors ({reached}, proven)"
    )
    _print_own(out, found)
    _print_impossible(out, found)
    if len(found.undecided):
        why = found.reasons.get(int(found.undecided[0]), "")
        out.print(f"undecided, the first of them because {printable(why)}", soft_wrap=True)
    if certificates is not None:
        out.print(f"proofs in {printable(certificates)}; check them with uncork verify")
    out.print(f"every verdict and every bound is proven ({found.seconds['total']:.1f} s)")


def _print_own(out: Console, found: Retrieval) -> None:
    if found.own is None:
        return
    out.print(f"the query vectors given have recall@{found.k} {found.own_recall:.4g}")
    faults = found.faults
    meaning = {
        "none": "rank their relevant items on top already",
        "query": "do not, and another vector would: the query encoder missed it",
        "items": "do not, and none can: the items' vectors are at fault, proven",
        "undecided": "do not, and whether any could is not proven",
    }
    for name, text in meaning.items():
        if faults[name] or name != "undecided":
            out.print(f"  {faults[name]:>9,} {text}")


def _print_impossible(out: Console, found: Retrieval) -> None:
    lost = found.impossible.tolist()
    for q in lost[:_LISTED]:
        conflict = found.conflict(q, _NAMED)
        assert conflict is not None

        def side(name: str, at: int, conflict: dict[str, Any] = conflict) -> str:
            parts = [f"{p['weight']:.0%} {shown(p['label'])}" for p in conflict[name]]
            more = conflict["items"][at] - len(parts)
            return " + ".join(parts) + (f" + {more:,} more" if more > 0 else "")

        out.print(
            f"    {shown(found.judgements.queries[q])}: at every query {side('relevant', 0)} "
            f"score no more than {side('others', 1)}",
            soft_wrap=True,
        )
    if len(lost) > _LISTED:
        out.print(f"    and {len(lost) - _LISTED:,} more (--json lists them all)")
