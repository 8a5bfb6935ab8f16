"""The options that commands share. Each is declared here once and means the same everywhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any

import numpy as np
import typer

from uncork.cli.help import DECIDE, DOMAIN, INPUT, OUTPUT, RUN
from uncork.cli.parameters import Reads, Was, Writes
from uncork.core.errors import UncorkError
from uncork.core.head import Head
from uncork.core.items import Items
from uncork.core.progress import silence
from uncork.domain import Domain as InputDomain
from uncork.domain import parse_domain
from uncork.domain.hull import domain_of_queries
from uncork.loading.chosen_classes import HELP as _CLASSES
from uncork.loading.contents import Contents
from uncork.loading.source import Found, find, open_source, used_metric
from uncork.loading.vectors.items import FoundItems, find_items
from uncork.report.formats import FORMATS
from uncork.theory.random_heads import random_head

DEFAULT_DOMAIN = "box:100"

# ---- Input: which head -----------------------------------------------------------------------

Source = Annotated[
    str,
    typer.Argument(help="Model file, Hugging Face folder, or hf:owner/name.", metavar="SOURCE"),
    Reads("the model"),
]


class Metric(str, Enum):
    """How items are compared with a query."""

    inner = "inner"
    cosine = "cosine"
    euclidean = "euclidean"


Weight = Annotated[
    str | None,
    typer.Option(help="Name of the weight tensor.", metavar="NAME", rich_help_panel=INPUT),
]
Transpose = Annotated[
    bool,
    typer.Option("--transpose", help="Classes are the weight's columns.", rich_help_panel=INPUT),
]
MetricOfItems = Annotated[
    Metric | None,
    typer.Option(
        help="How a vector index compares items with a query.",
        show_default="what the index says; inner",
        rich_help_panel=INPUT,
    ),
]


@dataclass(frozen=True)
class HeadTensors:
    """Which tensors of the source are the head, where that is not left to uncork."""

    base: Annotated[
        str | None,
        typer.Option(
            help="Model to merge an adapter (LoRA …) into: folder or hf:owner/name.",
            metavar="SOURCE",
            rich_help_panel=INPUT,
        ),
        Reads("the base model"),
    ] = None
    weight: Weight = None
    bias: Annotated[
        str | None,
        typer.Option(
            help="Name of the bias tensor.",
            metavar="NAME",
            rich_help_panel=INPUT,
        ),
        Was("--bias-name"),
    ] = None
    transpose: Transpose = False

    def find(self, source: str, **more: Any) -> Found:
        """The head of the source, read with these options and more of `uncork.load`."""
        return find(source, **self.as_dict(), **more)

    def as_dict(self) -> dict[str, Any]:
        return {
            "weight": self.weight, "bias": self.bias, "transpose": self.transpose,
            "base": self.base,
        }  # fmt: skip

    def given(self) -> tuple[str, ...]:
        """The options as they were typed."""
        texts = {"--base": self.base, "--weight": self.weight, "--bias": self.bias}
        parts = [part for option, text in texts.items() if text for part in (option, text)]
        return (*parts, "--transpose") if self.transpose else tuple(parts)


@dataclass(frozen=True)
class Tensors(HeadTensors):
    """The same of a source that may be a vector index, and how that compares its items."""

    metric: MetricOfItems = None

    def as_dict(self) -> dict[str, Any]:
        metric = None if self.metric is None else self.metric.value
        return {**super().as_dict(), "metric": metric}

    def open(self, source: str) -> Contents:
        """The source, opened once for `items` and `find`."""
        return open_source(source, self.base)

    def items(self, contents: Contents, labels: str | None) -> FoundItems | None:
        """The items of an index that does not compare by inner products; None for every other."""
        metric = self.as_dict()["metric"]
        if used_metric(contents, metric)[0] == "inner":
            return None
        return find_items(
            contents, metric=metric, vectors=self.weight, transpose=self.transpose, labels=labels
        )

    def given(self) -> tuple[str, ...]:
        metric = () if self.metric is None else ("--metric", self.metric.value)
        return (*super().given(), *metric)


@dataclass(frozen=True)
class Vectors:
    """Which array of an index holds its items, and how they are compared."""

    weight: Weight = None
    transpose: Transpose = False
    metric: MetricOfItems = None

    def find(self, source: str, labels: Sequence[str] | None) -> Items:
        """The items of the source."""
        metric = None if self.metric is None else self.metric.value
        return find_items(
            open_source(source), metric=metric, vectors=self.weight, transpose=self.transpose,
            labels=labels,
        ).items  # fmt: skip


DropBias = Annotated[
    bool,
    typer.Option("--drop-bias", help="Leave the bias out: z = W x.", rich_help_panel=INPUT),
]
Labels = Annotated[
    str | None,
    typer.Option(
        help="File with one label per line, or JSON.", metavar="FILE", rich_help_panel=INPUT
    ),
    Reads("the labels"),
]


class Init(str, Enum):
    """How the weights of a random head are drawn."""

    normal = "normal"
    uniform = "uniform"


@dataclass(frozen=True)
class RandomHead:
    """The size of a random head, and how it is drawn."""

    classes: Annotated[
        int | None,
        typer.Option(
            "-C",
            "--number-of-classes",
            help="Random head: number of classes.",
            metavar="N",
            rich_help_panel=INPUT,
        ),
        Was("--classes"),
    ] = None
    features: Annotated[
        int | None,
        typer.Option(
            "-d",
            "--features",
            help="Random head: number of features.",
            metavar="D",
            rich_help_panel=INPUT,
        ),
    ] = None
    init: Annotated[
        Init,
        typer.Option(help="Random head: entries from N(0, 1) or U(−1, 1).", rich_help_panel=INPUT),
    ] = Init.normal
    seed: Annotated[
        int,
        typer.Option(
            help="Random head: the same seed gives the same head.",
            metavar="S",
            rich_help_panel=INPUT,
        ),
    ] = 0

    def draw(self, bias: bool, domain: str) -> Head:
        if self.classes is None or self.features is None:
            raise UncorkError("how many classes and features? give -C and -d")
        inputs = parse_domain(domain)
        return random_head(self.classes, self.features, self.init.value, bias, self.seed, inputs)


# ---- Domain ----------------------------------------------------------------------------------


def _domain(default: str) -> Any:
    return typer.Option(
        "--domain",
        help="Inputs that can reach the head: box:R, box:LO,HI, ball:R, unbounded, @FILE, or auto "
        "(what the model shows of the layers before the head).",
        show_default=default,
        metavar="SPEC",
        rich_help_panel=DOMAIN,
    )


Domain = Annotated[str | None, _domain(DEFAULT_DOMAIN), Reads("the domain")]
DomainOfPictures = Annotated[str, _domain("unbounded"), Reads("the domain")]


DomainOfQueries = Annotated[str | None, _domain("unbounded"), Reads("the domain")]


class Way(str, Enum):
    """What the vectors of real queries stand for."""

    span = "span"
    box = "box"
    hull = "hull"


QueryFile = Annotated[
    str | None,
    typer.Option(
        "--queries",
        help="Vectors of real queries, one a row.",
        metavar="FILE",
        rich_help_panel=DOMAIN,
    ),
    Reads("the query vectors"),
]
QueriesAs = Annotated[
    Way | None,
    typer.Option(
        "--queries-as",
        help="Only queries in the span of those vectors, in the box around them, or in their hull.",
        rich_help_panel=DOMAIN,
    ),
]


@dataclass(frozen=True)
class Queries:
    """Vectors of real queries, and whether they bound which queries there are."""

    queries: QueryFile = None
    queries_as: QueriesAs = None

    def check(self, domain: str | None) -> None:
        """Raise where these options and the domain's text do not go together."""
        if domain is not None and self.queries_as is not None:
            raise UncorkError("--domain and --queries-as both say what can arrive: give one")
        if self.queries is None and self.queries_as is not None:
            raise UncorkError("--queries-as is about vectors: add --queries FILE")

    def vectors(self, features: int) -> np.ndarray | None:
        """The vectors, one a row, of that many features; None where none are given."""
        if self.queries is None:
            return None
        rows = find_items(open_source(self.queries), metric="inner").items.vectors
        if rows.shape[1] != features:
            raise UncorkError(
                f"{self.queries}: the query vectors have {rows.shape[1]:,} features, and the items "
                f"have {features:,}"
            )
        return rows

    def domain(self, features: int) -> InputDomain | None:
        """What the vectors stand for; None where they bound nothing."""
        rows = self.vectors(features)
        if rows is None or self.queries_as is None:
            return None
        return domain_of_queries(rows, self.queries_as.value)

    def origin(self) -> str:
        """Where the domain comes from, if it comes from here."""
        if self.queries_as is None:
            return ""
        words = {"span": "the span of", "box": "the box around", "hull": "the hull of"}
        return f"{words[self.queries_as.value]} the vectors in {self.queries}"

    def bounding(self, head: Head) -> Head:
        """The head, with the domain that the vectors stand for if they are to bound it."""
        domain = self.domain(head.features)
        return head if domain is None else head.replace(domain=domain)


def check_domain(text: str | None) -> None:
    """Raise before a file is opened if the domain's text means nothing."""
    if text is not None and text.strip() != "auto":
        parse_domain(text)


# ---- What to decide --------------------------------------------------------------------------

Classes = Annotated[
    str | None,
    typer.Option(help=_CLASSES, metavar="WHICH", rich_help_panel=DECIDE),
    Reads("the classes"),
]


class Algorithm(str, Enum):
    """Ours, or the paper's as it is written."""

    fast = "fast"
    reference = "reference"


@dataclass(frozen=True)
class Search:
    """How far an audit goes, and with which algorithm."""

    approximate: Annotated[
        bool,
        typer.Option(
            "--approximate",
            help="Screen only; classes that it does not prove argmaxable are reported as "
            "potentially unargmaxable.",
            rich_help_panel=DECIDE,
        ),
    ] = False
    patience: Annotated[
        int | None,
        typer.Option(
            help="Reflections before screening gives up on a class.",
            metavar="N",
            rich_help_panel=DECIDE,
        ),
    ] = None
    algorithm: Annotated[
        Algorithm,
        typer.Option(
            help="fast, or reference: the paper's, one class at a time.", rich_help_panel=DECIDE
        ),
    ] = Algorithm.fast

    def as_dict(self) -> dict[str, Any]:
        return {
            "approximate": self.approximate, "patience": self.patience,
            "algorithm": self.algorithm.value,
        }  # fmt: skip


# ---- Output ----------------------------------------------------------------------------------

Json = Annotated[
    str | None,
    typer.Option(
        "--json",
        help="Write the result as JSON (- for stdout).",
        metavar="FILE",
        rich_help_panel=OUTPUT,
    ),
    Writes("--json"),
]
Certificates = Annotated[
    str | None,
    typer.Option(
        help="Write the proofs to this file, for uncork verify.",
        metavar="FILE",
        rich_help_panel=OUTPUT,
    ),
    Writes("--certificates"),
]


def _known_format(name: str) -> str:
    if name not in FORMATS:
        raise typer.BadParameter(f"{name!r}: expected {', '.join(FORMATS)}")
    return name


Format = Annotated[
    str,
    typer.Option(
        "--format",
        help="How to write the result.",
        metavar="|".join(FORMATS),
        callback=_known_format,
        autocompletion=lambda: list(FORMATS),
        rich_help_panel=OUTPUT,
    ),
]
Plot = Annotated[
    str | None,
    typer.Option(
        help="Draw the result: .png, .svg or .pdf.", metavar="FILE", rich_help_panel=OUTPUT
    ),
    Writes("--plot"),
]
Picture = Annotated[
    str,
    typer.Option(
        "-o",
        "--output",
        help="The picture to write: .png, .svg or .pdf.",
        metavar="FILE",
        rich_help_panel=OUTPUT,
    ),
    Writes("--output"),
]

# ---- The store -------------------------------------------------------------------------------


def chosen_store(store: str | None) -> str:
    """The store that was named, else the user's own."""
    from uncork.store.default import default_store

    return default_store(create=False) if store is None else store


def _store(panel: str) -> Any:
    return typer.Option(
        "--store",
        help="File or postgresql:// URL of the store that holds results.",
        show_default="$UNCORK_STORE, or a file in your data folder",
        metavar="URL",
        rich_help_panel=panel,
    )


_StoreFiles = Reads("the store", lambda store: [chosen_store(store)])
StoreToWrite = Annotated[str | None, _store(OUTPUT), _StoreFiles]
StoreToRead = Annotated[str | None, _store(INPUT), _StoreFiles]
StoredName = Annotated[
    str | None,
    typer.Option(
        help="Only audits with this in their name.", metavar="TEXT", rich_help_panel=INPUT
    ),
]
StoredGroup = Annotated[
    str | None,
    typer.Option(help="Only audits of this group.", metavar="GROUP", rich_help_panel=INPUT),
]

# ---- Run -------------------------------------------------------------------------------------


class Device(str, Enum):
    """Where matrix products are computed."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


Resume = Annotated[
    bool,
    typer.Option("--resume", help="Continue where an earlier run stopped.", rich_help_panel=RUN),
]
Quiet = Annotated[
    bool,
    typer.Option(
        "--quiet", help="Show no progress and no notices.", callback=silence, rich_help_panel=RUN
    ),
]


Jobs = Annotated[
    int | None,
    typer.Option(
        help="Threads to use.", show_default="all cores", metavar="N", rich_help_panel=RUN
    ),
]
TimeLimit = Annotated[
    float | None,
    typer.Option(
        help="Stop searching after this time; what is left stays undecided.",
        metavar="SECONDS",
        rich_help_panel=RUN,
    ),
]


@dataclass(frozen=True)
class Run:
    """Where a command computes, and whether it says how far it is."""

    device: Annotated[
        Device,
        typer.Option(
            help="Where to compute; auto: on the GPU if there is one.", rich_help_panel=RUN
        ),
    ] = Device.auto
    jobs: Jobs = None
    quiet: Quiet = False

    def on(self) -> dict[str, Any]:
        """Where to compute, for what `uncork` offers in Python."""
        return {"device": self.device.value, "jobs": self.jobs}


@dataclass(frozen=True)
class LimitedRun(Run):
    """A run that can be given a time to end in."""

    time_limit: TimeLimit = None


@dataclass(frozen=True)
class RunHere:
    """A limited run on the processor, for what has no other place yet."""

    jobs: Jobs = None
    quiet: Quiet = False
    time_limit: TimeLimit = None


class Engine(str, Enum):
    """Where the work is done."""

    local = "local"
    dask = "dask"
    ray = "ray"


Address = Annotated[
    str | None,
    typer.Option(
        help="Address of the Dask scheduler or Ray cluster; without one it is started here.",
        metavar="HOST:PORT",
        rich_help_panel=RUN,
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        help="Processes to start.", show_default="all cores", metavar="N", rich_help_panel=RUN
    ),
]


@dataclass(frozen=True)
class Cluster:
    """Which workers share one audit, if any do."""

    engine: Annotated[
        Engine | None,
        typer.Option(
            help="Split the audit by classes over local processes, or over a Dask or Ray cluster.",
            show_default="this process",
            rich_help_panel=RUN,
        ),
    ] = None
    address: Address = None
    workers: Workers = None
    send_rows: Annotated[
        bool,
        typer.Option(
            "--send-rows",
            help="Send the rows to the workers, once each, instead of having each read SOURCE.",
            rich_help_panel=RUN,
        ),
    ] = False

    def check(self) -> None:
        """Raise where an option says something about workers and there are none."""
        if self.engine is None:
            given = {
                "--address": self.address, "--workers": self.workers,
                "--send-rows": self.send_rows or None,
            }  # fmt: skip
            for option, value in given.items():
                if value is not None:
                    raise UncorkError(f"{option} goes with --engine local, dask or ray")
        elif self.engine is Engine.local and self.send_rows:
            raise UncorkError("--send-rows goes with --engine dask or ray: local workers read it")
