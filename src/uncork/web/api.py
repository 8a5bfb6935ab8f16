"""The JSON API over a store: audits, classes, comparisons, and what the paper's server answered."""

from __future__ import annotations

import dataclasses
import json
import math
import threading
from collections import OrderedDict
from enum import Enum
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Path, Query
from starlette.responses import JSONResponse, Response

from uncork.audit.verdict import Verdict
from uncork.errors import UncorkError
from uncork.reading import json_keys
from uncork.report.data import report_data
from uncork.store import Store, StoredAudit
from uncork.web import models, queries
from uncork.web.stored import compared, described_class, shown_stored
from uncork.web.weights import Unavailable, WeightsCache

_LARGEST = 2**31 - 1  # what a database's integer holds
_MOST = 1000  # items of one page
_LONGEST = 1000  # characters of a query
_COMPARISONS = 4  # kept at once

AuditId = Annotated[int, Path(ge=1, le=_LARGEST, description="id of an audit")]
ClassId = Annotated[int, Path(ge=0, le=_LARGEST, description="class number")]
Limit = Annotated[int, Query(ge=1, le=_MOST, description="items of one page")]
Offset = Annotated[int, Query(ge=0, le=_LARGEST, description="items to pass over")]
Text = Annotated[str | None, Query(max_length=_LONGEST)]
Model = Annotated[
    str | None, Query(max_length=_LONGEST, description="text in the model's name or source")
]


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


_MISSING: dict[int | str, dict[str, Any]] = {
    404: {"model": models.Problem, "description": "There is no such audit or class."}
}


class Json(JSONResponse):
    """JSON in ASCII, so that labels which UTF-8 cannot hold arrive too; no NaN, no infinity."""

    def render(self, content: Any) -> bytes:
        return json.dumps(_finite(content), separators=(",", ":"), allow_nan=False).encode("ascii")


def make_api(store: Store, cache: WeightsCache) -> APIRouter:
    """Every path of the API, reading from that store."""
    api = APIRouter(prefix="/api", default_response_class=Json)

    comparisons = _Comparisons(store)

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
        following = offset + len(page)
        return Json(
            {
                "total": total,
                "items": [plain_audit(audit) for audit in page],
                "next_offset": following if page and following < total else None,
            }
        )

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
            str | None, Query(max_length=_LONGEST, description="text in the label")
        ] = None,
        after: Annotated[
            int, Query(ge=-1, le=_LARGEST, description="the last class of the page before")
        ] = -1,
        limit: Limit = 100,
    ) -> Response:
        found(audit_id)
        wanted = None if verdict is None else verdict.verdict()
        total, page = queries.class_page(
            store, audit_id, verdict=wanted, label=label, after=after, limit=limit
        )
        following = page[-1]["class"] if len(page) == limit else None
        return Json({"total": total, "items": page, "next_after": following})

    @api.get(
        "/audits/{audit_id}/classes/{class_id}", response_model=models.ClassDetail,
        responses=_MISSING, summary="One class: its proof, nearest rows, history",
    )  # fmt: skip
    def one_class(audit_id: AuditId, class_id: ClassId) -> Response:
        described = described_class(store, found(audit_id), class_id, cache)
        if described is None:
            raise HTTPException(404, f"audit {audit_id} has no class {class_id}")
        return Json(described)

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
        summary="Which classes changed between two audits",
    )  # fmt: skip
    def compare(
        before: Annotated[int, Query(ge=1, le=_LARGEST)],
        after: Annotated[int, Query(ge=1, le=_LARGEST)],
        limit: Limit = 100,
        offset: Offset = 0,
    ) -> Response:
        first, second = found(before), found(after)
        result = comparisons.of(first, second)
        changes = result["changes"]
        page = changes[offset : offset + limit]
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
        after_audit: Annotated[int, Query(ge=0, le=_LARGEST)] = 0,
        after_class: Annotated[int, Query(ge=-1, le=_LARGEST)] = -1,
        limit: Limit = 100,
    ) -> Response:
        page = queries.result_page(
            store, model=model, verdict=None if verdict is None else verdict.verdict(),
            audit_after=after_audit, class_after=after_class, limit=limit,
        )  # fmt: skip
        last = None
        if len(page) == limit:
            last = {"audit": page[-1]["audit"], "class": page[-1]["class"]}
        return Json({"items": page, "next_after": last})

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


class _Comparisons:
    """Audits compared; the last few are kept, because their pages are asked for one by one."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.kept: OrderedDict[tuple[Any, ...], dict[str, Any]] = OrderedDict()
        self.lock = threading.Lock()

    def of(self, before: StoredAudit, after: StoredAudit) -> dict[str, Any]:
        key = (before.id, before.created, after.id, after.created)
        with self.lock:
            if key not in self.kept:
                self.kept[key] = compared(self.store, before, after)
                while len(self.kept) > _COMPARISONS:
                    self.kept.popitem(last=False)
            self.kept.move_to_end(key)
            return self.kept[key]


def plain_audit(audit: StoredAudit) -> dict[str, Any]:
    """A stored audit as JSON has it."""
    plain = {**dataclasses.asdict(audit), "created": audit.created.isoformat()}
    del plain["reading"]
    return {**plain, **json_keys(audit.reading)}


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
