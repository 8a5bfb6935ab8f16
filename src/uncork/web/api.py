"""The JSON API over a store: audits, classes, comparisons, and what the paper's server answered."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from enum import Enum
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Path, Query
from starlette.responses import Response

from uncork.auditing.proofs.verdict import Verdict
from uncork.core.errors import UncorkError
from uncork.report.data import ODD_NAMES, report_data
from uncork.store import Store, StoredAudit
from uncork.web import models, queries
from uncork.web.answers import (
    LARGEST,
    LONGEST,
    Json,
    Limit,
    Model,
    Offset,
    cut_labels,
    next_offset,
)
from uncork.web.classes import (
    ClassesAsked,
    classes_asked,
    described_odd,
    figure_dots,
    named_others,
    rank_dots,
)
from uncork.web.label_sets.api import label_api
from uncork.web.moving.api import moving_api
from uncork.web.stored import (
    DIFFERENCES,
    compared,
    described_class,
    differing,
    plain_audit,
    shown_stored,
)
from uncork.web.weights import Unavailable, WeightsCache

_COMPARISONS = 4  # kept at once
_FIGURES = 16

AuditId = Annotated[int, Path(ge=1, le=LARGEST, description="id of an audit")]
ClassId = Annotated[int, Path(ge=0, le=LARGEST, description="class number")]
WholeLabels = Annotated[bool, Query(description="labels uncut, however long")]
Text = Annotated[str | None, Query(max_length=LONGEST)]


class VerdictName(str, Enum):
    """Verdicts by name."""

    argmaxable = "argmaxable"
    unargmaxable = "unargmaxable"
    tied = "tied"
    undecided = "undecided"

    def verdict(self) -> Verdict:
        return Verdict[self.value.upper()]


class Order(str, Enum):
    """What audits can be sorted by: the keys of `queries.ORDERS`."""

    id = "id"
    name = "name"
    group = "group"
    classes = "classes"
    features = "features"
    unargmaxable = "unargmaxable"
    share = "share"
    tied = "tied"
    undecided = "undecided"
    created = "created"


class ClassOrder(str, Enum):
    """What classes can be sorted by: the keys of `queries.CLASS_ORDERS`."""

    class_ = "class"
    label = "label"
    verdict = "verdict"
    margin = "margin"


class Across(str, Enum):
    """What a figure's margins stand over."""

    class_ = "class"
    norm = "norm"


class Up(str, Enum):
    """What stands over it."""

    margin = "margin"
    rank = "rank"


Difference = Enum("Difference", {name: name for name in DIFFERENCES}, type=str)  # type: ignore[misc]
OddRow = Enum("OddRow", {name: name for name in ODD_NAMES}, type=str)  # type: ignore[misc]

_MISSING: dict[int | str, dict[str, Any]] = {
    404: {"model": models.Problem, "description": "There is no such audit or class."}
}


def make_api(store: Store, cache: WeightsCache, local: bool = True) -> APIRouter:
    """Every path of the API, reading from that store; `local`: only this machine can ask."""
    api = APIRouter(prefix="/api", default_response_class=Json)

    comparisons, drawn = _Kept(_COMPARISONS), _Kept(_FIGURES)

    def found(audit_id: int) -> StoredAudit:
        audit = queries.find_audit(store, audit_id)
        if audit is None:
            raise HTTPException(404, f"there is no audit {audit_id}")
        return audit

    @api.get("/audits", response_model=models.AuditPage, summary="All audits")
    def audits(
        name: Model = None,
        group: Text = None,
        fingerprint: Text = None,
        sort: Order = Order.id,
        descending: bool = False,
        limit: Limit = 100,
        offset: Offset = 0,
    ) -> Response:
        total, page = queries.audit_page(
            store, name=name, group=group, fingerprint=fingerprint, order=sort.value,
            descending=descending, limit=limit, offset=offset,
        )  # fmt: skip
        items = [plain_audit(audit) for audit in page]
        following = next_offset(offset, len(page), total)
        return Json({"total": total, "items": items, "next_offset": following})

    @api.get("/groups", response_model=models.GroupNames, summary="Names of groups")
    def group_names() -> Response:
        return Json({"items": queries.groups(store)})

    @api.get(
        "/audits/{audit_id}", response_model=models.AuditItem, responses=_MISSING,
        summary="One audit",
    )  # fmt: skip
    def audit(audit_id: AuditId) -> Response:
        return Json(plain_audit(found(audit_id)))

    @api.get(
        "/audits/{audit_id}/classes", response_model=models.ClassPage, responses=_MISSING,
        summary="Classes of an audit",
    )  # fmt: skip
    def classes(
        audit_id: AuditId,
        verdict: VerdictName | None = None,
        label: Annotated[
            str | None, Query(max_length=LONGEST, description="text in the label")
        ] = None,
        search: Annotated[
            str | None,
            Query(
                max_length=LONGEST,
                description="text in the label in any case, a class number or U+…",
            ),
        ] = None,
        odd: Annotated[OddRow | None, Query(description="rows of that kind only")] = None,
        after: Annotated[
            int, Query(ge=-1, le=LARGEST, description="the last class of the page before")
        ] = -1,
        sort: ClassOrder = ClassOrder.class_,
        descending: bool = False,
        limit: Limit = 100,
        offset: Offset = 0,
        whole_labels: WholeLabels = False,
    ) -> Response:
        audit = found(audit_id)
        asked = ClassesAsked(
            None if verdict is None else verdict.verdict(), label, search, after, sort.value,
            descending, limit, offset,
        )  # fmt: skip
        kind = None if odd is None else odd.value
        total, page = classes_asked(store, audit, asked, kind, cache)
        ordered = sort is ClassOrder.class_ and not descending
        following = page[-1]["class"] if ordered and len(page) == limit else None
        others = named_others(store, audit_id, page)
        items = [item if whole_labels else cut_labels(item) for item in map(measured, page)]
        return Json({"total": total, "items": items, "others": others, "next_after": following})

    @api.get(
        "/audits/{audit_id}/odd", response_model=models.OddKinds, responses=_MISSING,
        summary="Rows worth a look: zero, equal, special, unused",
    )  # fmt: skip
    def odd_kinds(audit_id: AuditId) -> Response:
        audit = found(audit_id)
        try:
            return Json({"kinds": described_odd(store, audit, cache), "weights": ""})
        except Unavailable as why:
            return Json({"kinds": None, "weights": str(why)})

    @api.get(
        "/audits/{audit_id}/figures", response_model=models.Dots, responses=_MISSING,
        summary="The dots of an audit's figures",
    )  # fmt: skip
    def figures(
        audit_id: AuditId,
        across: Across = Across.class_,
        up: Annotated[Up, Query(description="ranks stand over lengths of rows only")] = Up.margin,
    ) -> Response:
        audit = found(audit_id)
        try:
            if up is Up.rank:  # best ranks may be stored later than the audit
                made = rank_dots(store, audit, cache)
            else:
                made = drawn.of(
                    (audit.id, audit.created, across),
                    lambda: figure_dots(store, audit, across is Across.norm, cache),
                )
        except Unavailable as why:
            return Json({**dict.fromkeys(models.Dots.model_fields), "weights": str(why)})
        return Json({**made, "weights": ""})

    @api.get(
        "/audits/{audit_id}/classes/{class_id}", response_model=models.ClassDetail,
        responses=_MISSING, summary="One class: its proof, nearest rows, history",
    )  # fmt: skip
    def one_class(
        audit_id: AuditId, class_id: ClassId, whole_labels: WholeLabels = False
    ) -> Response:
        described = described_class(store, found(audit_id), class_id, cache)
        if described is None:
            raise HTTPException(404, f"audit {audit_id} has no class {class_id}")
        measured(described)
        return Json(described if whole_labels else cut_labels(described))

    @api.get(
        "/audits/{audit_id}/classes/{class_id}/outlook", response_model=models.ClassOutlook,
        responses=_MISSING, summary="How near a class comes: highest probability and best rank",
    )  # fmt: skip
    def class_outlook(audit_id: AuditId, class_id: ClassId) -> Response:
        audit = found(audit_id)
        if queries.one_class(store, audit_id, class_id) is None:
            raise HTTPException(404, f"audit {audit_id} has no class {class_id}")
        empty = dict.fromkeys(models.ClassOutlook.model_fields)
        try:
            known = cache.outlook(audit, class_id).of(class_id) or {}
        except (Unavailable, UncorkError) as error:
            return Json({**empty, "weights": str(error)})
        return Json({**empty, **known, "weights": ""})

    @api.get(
        "/audits/{audit_id}/report", responses={200: {"model": dict[str, Any]}, **_MISSING},
        summary="What the report of an audit is drawn from",
    )  # fmt: skip
    def report(audit_id: AuditId) -> Response:
        return Json(report_data(shown_stored(store, found(audit_id), cache)))

    @api.get(
        "/compare", response_model=models.Comparison, responses=_MISSING,
        summary="Two audits side by side: which classes differ",
    )  # fmt: skip
    def compare(
        before: Annotated[int, Query(ge=1, le=LARGEST)],
        after: Annotated[int, Query(ge=1, le=LARGEST)],
        kind: Annotated[
            Difference | None,
            Query(description="only these; lost and regained: by the second; both: by both"),
        ] = None,
        search: Annotated[
            str, Query(max_length=LONGEST, description="text in the label, or a class number")
        ] = "",
        limit: Limit = 100,
        offset: Offset = 0,
        whole_labels: WholeLabels = False,
    ) -> Response:
        first, second = found(before), found(after)
        result = comparisons.of(
            (first.id, first.created, second.id, second.created),
            lambda: compared(store, first, second),
        )
        changes = differing(result["changes"], None if kind is None else kind.value, search)
        page = changes[offset : offset + limit]
        page = page if whole_labels else cut_labels(page)
        following = offset + len(page)
        return Json(
            {
                "before": plain_audit(first),
                "after": plain_audit(second),
                **result,
                "total": len(changes),
                "changes": page,
                "next_offset": following if page and following < len(changes) else None,
            }
        )

    api.include_router(moving_api(store, cache, local))
    api.include_router(label_api(store))

    @api.get("/failures", response_model=models.Failures, summary="Models that failed in a sweep")
    def failures() -> Response:
        rows = [{**row, "created": row["created"].isoformat()} for row in store.failures()]
        for row in rows:
            del row["resolved"]  # none of these is
        return Json({"items": rows})

    @api.get(
        "/experiments", response_model=models.AuditPage,
        summary="Audits by model name, fewest unargmaxable classes first",
    )  # fmt: skip
    def experiments(model: Model = None, limit: Limit = 100, offset: Offset = 0) -> Response:
        return audits(
            name=model,
            sort=Order.unargmaxable,
            limit=limit,
            offset=offset,
        )

    @api.get("/results", response_model=models.ResultPage, summary="Classes of all audits")
    def results(
        model: Model = None,
        verdict: VerdictName | None = None,
        after_audit: Annotated[int, Query(ge=0, le=LARGEST)] = 0,
        after_class: Annotated[int, Query(ge=-1, le=LARGEST)] = -1,
        limit: Limit = 100,
        whole_labels: WholeLabels = False,
    ) -> Response:
        page = queries.result_page(
            store, model=model, verdict=None if verdict is None else verdict.verdict(),
            audit_after=after_audit, class_after=after_class, limit=limit,
        )  # fmt: skip
        last = None
        if len(page) == limit:
            last = {"audit": page[-1]["audit"], "class": page[-1]["class"]}
        items = [item if whole_labels else cut_labels(item) for item in map(measured, page)]
        return Json({"items": items, "next_after": last})

    @api.get(
        "/unargmaxable", response_model=models.LostPage,
        summary="Ids of unargmaxable classes, by model name",
    )  # fmt: skip
    def unargmaxable(model: Model = None, limit: Limit = 100, offset: Offset = 0) -> Response:
        page = queries.lost_ids(store, model, limit, offset)
        return Json(
            {
                "next_offset": offset + limit if len(page) == limit else None,
                "items": [
                    {
                        "audit": audit.id,
                        "name": audit.name,
                        "fingerprint": audit.fingerprint,
                        "domain": audit.domain,
                        "ids": ids,
                    }
                    for audit, ids in page
                ],
            }
        )

    return api


class _Kept:
    """What was made of stored audits; the last few are kept, because it is asked for again."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.kept: OrderedDict[tuple[Any, ...], Any] = OrderedDict()
        self.lock = threading.Lock()

    def of(self, key: tuple[Any, ...], make: Callable[[], Any]) -> Any:
        with self.lock:
            if key not in self.kept:
                self.kept[key] = make()
                while len(self.kept) > self.most:
                    self.kept.popitem(last=False)
            self.kept.move_to_end(key)
            return self.kept[key]


def measured(item: dict[str, Any]) -> dict[str, Any]:
    """A class with how long its label is."""
    item["label_length"] = None if item["label"] is None else len(item["label"])
    return item
