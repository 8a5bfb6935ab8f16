"""The JSON API's part about moved rows: one class of a changed head, decided by the real audit.

Nothing is written, and nothing is kept. It costs seconds, so it is answered to this machine alone,
one at a time.
"""

from __future__ import annotations

import threading
import time
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, HTTPException, Path, Query, Request
from starlette.responses import Response

from uncork.auditing import Audit
from uncork.auditing.proofs.verdict import Verdict
from uncork.auditing.run import audit as decide
from uncork.core.errors import UncorkError
from uncork.core.head import Head
from uncork.store import Store, StoredAudit
from uncork.web import models, queries
from uncork.web.answers import LARGEST, Json, cut_labels
from uncork.web.moving.head import moved_head
from uncork.web.stored import named, proof_of
from uncork.web.weights import Unavailable, WeightsCache

SECONDS = 5.0  # of search for one answer
_WAIT = 10.0  # seconds until another's answer is made
_LARGEST = 1e30
_LONGEST = 1000.0
NOT_LOCAL = "it is answered only by a server that this machine alone can reach"

_ANSWERS: dict[int | str, dict[str, Any]] = {
    403: {"model": models.Problem, "description": "Other machines can reach this server."},
    404: {"model": models.Problem, "description": "There is no such audit or class."},
    503: {"model": models.Problem, "description": "Another one is being decided."},
}


def moving_api(store: Store, cache: WeightsCache, local: bool) -> APIRouter:
    """The path that decides a moved class; `local`: whether only this machine can ask."""
    api = APIRouter(default_response_class=Json)
    one_at_a_time = threading.Lock()

    @api.get(
        "/audits/{audit_id}/classes/{class_id}/moved", response_model=models.MovedClass,
        responses=_ANSWERS, summary="One class, decided with its bias or its row changed",
    )  # fmt: skip
    def moved(
        request: Request,
        audit_id: Annotated[int, Path(ge=1, le=LARGEST, description="id of an audit")],
        class_id: Annotated[int, Path(ge=0, le=LARGEST, description="class number")],
        bias: Annotated[
            float,
            Query(ge=-_LARGEST, le=_LARGEST, allow_inf_nan=False, description="added to its bias"),
        ] = 0.0,
        length: Annotated[
            float,
            Query(ge=0, le=_LONGEST, allow_inf_nan=False, description="times as long a row"),
        ] = 1.0,
    ) -> Response:
        if not local or request.headers.get("sec-fetch-site", "none") not in _OUR_PAGES:
            raise HTTPException(403, NOT_LOCAL)
        audit = queries.find_audit(store, audit_id)
        row = None if audit is None else queries.one_class(store, audit_id, class_id)
        if audit is None or row is None:
            raise HTTPException(404, f"audit {audit_id} has no class {class_id}")
        if not one_at_a_time.acquire(timeout=_WAIT):
            raise HTTPException(503, "another moved row is being decided: ask again")
        try:
            return Json(_answer(store, audit, row, bias, length, cache))
        except (Unavailable, UncorkError) as why:
            empty = dict.fromkeys(models.MovedClass.model_fields)
            return Json({**empty, "weights": str(why)})
        finally:
            one_at_a_time.release()

    return api


_OUR_PAGES = ("same-origin", "none")  # what browsers say of a page of ours, and of the address bar


def _answer(
    store: Store,
    audit: StoredAudit,
    row: dict[str, Any],
    raised: float,
    stretched: float,
    cache: WeightsCache,
) -> dict[str, Any]:
    weights, class_id = cache.of(audit), int(row["class"])
    if weights.domain is None:
        raise Unavailable(f"the domain {audit.domain} cannot be read back from the store")
    head = moved_head(weights.head, class_id, raised, stretched).replace(domain=weights.domain)
    started = time.perf_counter()
    found = decide(head, classes=[class_id], device="cpu", time_limit=SECONDS, progress=False)
    answer = {
        **_described(found, head, class_id),
        "bias": float(head.offsets[class_id]),
        "row_length": float(np.linalg.norm(head.take(np.array([class_id]))[0])),
        "room": _room(weights.head, class_id),
        "seconds": time.perf_counter() - started,
        "weights": "",
    }
    entries = [*(answer["mixture"] or {"parts": []})["parts"], *(answer["runners_up"] or [])]
    named(store, audit, entries, None if row["label"] is None else weights.head.labels)
    return cut_labels(answer)


def _described(found: Audit, head: Head, class_id: int) -> dict[str, Any]:
    verdict = Verdict(int(found.proofs.verdicts[class_id]))
    if verdict is Verdict.UNDECIDED:
        text = f"Nothing was proven within {SECONDS:g} s of search."
    else:
        text = "Decided from the moved weights, and certified, just now."
    margin = None if verdict is Verdict.UNDECIDED else found.margin(class_id)
    mixture, runners = proof_of(found, head, class_id)
    return {
        "verdict": str(verdict), "margin": margin, "text": text, "mixture": mixture,
        "runners_up": runners,
    }  # fmt: skip


def _room(head: Head, class_id: int) -> float:
    """How far a bias may be worth moving: past every other, or as far as a row's length reaches."""
    away = float(np.abs(head.offsets - head.offsets[class_id]).max())
    return away or float(np.linalg.norm(head.take(np.array([class_id]))[0])) or 1.0
