"""The JSON API's part about label sets: what was decided, the sets, one set proven again."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Path, Query
from starlette.responses import Response

from uncork.labels.result import SetVerdict
from uncork.store import Store
from uncork.web import models
from uncork.web.answers import LARGEST, LONGEST, Json, Limit, Model, Offset, next_offset
from uncork.web.label_sets.proofs import LabelProofs
from uncork.web.label_sets.queries import (
    find_label_audit,
    label_audit_page,
    one_set,
    plain_label_audit,
    set_page,
)

LabelAuditId = Annotated[int, Path(ge=1, le=LARGEST, description="id of a label audit")]
SetId = Annotated[int, Path(ge=0, le=LARGEST, description="number of a set")]
_MISSING: dict[int | str, dict[str, Any]] = {
    404: {"model": models.Problem, "description": "There is no such label audit or set."}
}


class SetVerdictName(str, Enum):
    """Verdicts on sets by name."""

    feasible = "feasible"
    infeasible = "infeasible"
    undecided = "undecided"


def label_api(store: Store) -> APIRouter:
    """Every path about label sets, reading from that store."""
    api = APIRouter(default_response_class=Json)
    proofs = LabelProofs()

    @api.get("/label-audits", response_model=models.LabelAuditPage, summary="All label audits")
    def label_audits(name: Model = None, limit: Limit = 100, offset: Offset = 0) -> Response:
        total, page = label_audit_page(store, name, limit, offset)
        items = [plain_label_audit(row) for row in page]
        following = next_offset(offset, len(page), total)
        return Json({"total": total, "items": items, "next_offset": following})

    @api.get(
        "/label-audits/{label_audit_id}", response_model=models.LabelAuditItem,
        responses=_MISSING, summary="One label audit",
    )  # fmt: skip
    def label_audit(label_audit_id: LabelAuditId) -> Response:
        return Json(plain_label_audit(found_label_audit(store, label_audit_id)))

    @api.get(
        "/label-audits/{label_audit_id}/sets", response_model=models.LabelSetPage,
        responses=_MISSING, summary="Label sets of a label audit",
    )  # fmt: skip
    def sets(
        label_audit_id: LabelAuditId,
        verdict: SetVerdictName | None = None,
        search: Annotated[
            str | None,
            Query(max_length=LONGEST, description="text in a label's name, or a label's number"),
        ] = None,
        limit: Limit = 100,
        offset: Offset = 0,
    ) -> Response:
        found_label_audit(store, label_audit_id)
        wanted = None if verdict is None else SetVerdict[verdict.value.upper()]
        total, page = set_page(store, label_audit_id, wanted, search, limit, offset)
        following = next_offset(offset, len(page), total)
        return Json({"total": total, "items": page, "next_offset": following})

    @api.get(
        "/label-audits/{label_audit_id}/sets/{set_id}", response_model=models.LabelSetDetail,
        responses=_MISSING, summary="One label set, proven again",
    )  # fmt: skip
    def label_set(label_audit_id: LabelAuditId, set_id: SetId) -> Response:
        stored = found_label_audit(store, label_audit_id)
        row = found_set(store, label_audit_id, set_id)
        return Json({**row, "label_audit": label_audit_id, **proofs.of(stored, row)})

    return api


def found_label_audit(store: Store, number: int) -> dict[str, Any]:
    """A label audit of the store; 404 where there is none."""
    found = find_label_audit(store, number)
    if found is None:
        raise HTTPException(404, f"there is no label audit {number}")
    return found


def found_set(store: Store, number: int, set_id: int) -> dict[str, Any]:
    """A set of a label audit; 404 where there is none."""
    row = one_set(store, number, set_id)
    if row is None:
        raise HTTPException(404, f"label audit {number} has no set {set_id}")
    return row
