"""The web application: pages and JSON API over one store, read-only."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, HTTPException, Request
from fastapi import Path as PathParameter
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException as AnyHTTPException
from starlette.responses import (
    FileResponse,
    HTMLResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.staticfiles import StaticFiles

from uncork import __version__
from uncork.core.errors import UncorkError
from uncork.store import Store, StoredAudit
from uncork.store.export import csv_lines
from uncork.web import pages, queries
from uncork.web.answers import Json
from uncork.web.api import make_api
from uncork.web.export.downloads import CERTIFICATES, CSV, has_certificates, in_pieces
from uncork.web.guard import Guard, is_loopback
from uncork.web.label_sets.api import found_label_audit, found_set
from uncork.web.stored import summary
from uncork.web.weights import WeightsCache

_ABOUT = (
    "What the output layers of audited models can say, and what they can never say. Everything "
    "here reads a store and writes nothing. Lists come in pages: ask again with the `next_…` value "
    "of the answer before."
)
AuditId = Annotated[int, PathParameter(ge=1, le=2**31 - 1)]
ClassId = Annotated[int, PathParameter(ge=0, le=2**31 - 1)]


def make_app(store: Store, host: str = "127.0.0.1") -> FastAPI:
    """The application over an open store, which it closes at its end; `host` is its own name."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        store.close()

    app = FastAPI(
        title="uncork", version=__version__, description=_ABOUT, docs_url=None, redoc_url=None,
        default_response_class=Json, lifespan=lifespan,
    )  # fmt: skip
    cache = WeightsCache(store)
    app.include_router(make_api(store, cache, is_loopback(host)))
    _add_pages(app, store, cache, is_loopback(host))
    app.mount("/static", StaticFiles(directory=_folder("uncork.web", "static")))
    app.mount("/assets", StaticFiles(directory=_folder("uncork.report", "assets")))
    _add_errors(app)
    app.add_middleware(Guard, host=host)
    return app


def _folder(package: str, name: str) -> Path:
    return Path(str(files(package).joinpath(name)))


def _add_pages(app: FastAPI, store: Store, cache: WeightsCache, local: bool) -> None:
    def page(path: str) -> Any:
        return app.get(path, include_in_schema=False, response_class=HTMLResponse)

    @page("/")
    def home() -> Response:
        return HTMLResponse(pages.audits(store.name))

    @page("/audits/{audit_id}")
    def audit(audit_id: AuditId) -> Response:
        found = _found(store, audit_id)
        files = [(f"/audits/{audit_id}/classes.csv", CSV)]
        if has_certificates(found):
            files.append((f"/audits/{audit_id}/certificates.npz", CERTIFICATES))
        return HTMLResponse(pages.report(found, summary(found), files))

    @app.get("/audits/{audit_id}/classes.csv", include_in_schema=False)
    def classes(audit_id: AuditId) -> Response:
        found = _found(store, audit_id)
        return StreamingResponse(
            in_pieces(csv_lines(store.rows_of(found), for_people=True)),
            media_type="text/csv; charset=utf-8",
            headers=_kept_as(f"audit-{audit_id}.csv"),
        )

    @app.get("/audits/{audit_id}/certificates.npz", include_in_schema=False)
    def certificates(audit_id: AuditId) -> Response:
        found = _found(store, audit_id)
        if not has_certificates(found) or cache.certificates(found) is None:
            raise HTTPException(404, f"the certificates of audit {audit_id} are not at hand")
        return FileResponse(
            str(found.certificates), media_type="application/octet-stream",
            headers=_kept_as(f"audit-{audit_id}-certificates.npz"),
        )  # fmt: skip

    @page("/audits/{audit_id}/classes/{class_id}")
    def one_class(audit_id: AuditId, class_id: ClassId) -> Response:
        found = _found(store, audit_id)
        if queries.one_class(store, audit_id, class_id) is None:
            raise HTTPException(404, f"audit {audit_id} has no class {class_id}")
        return HTMLResponse(pages.one_class(found, class_id, local))

    @page("/label-audits")
    def label_audits() -> Response:
        return HTMLResponse(pages.label_audits(store.name))

    @page("/label-audits/{audit_id}")
    def label_audit(audit_id: AuditId) -> Response:
        return HTMLResponse(pages.label_audit(found_label_audit(store, audit_id)))

    @page("/label-audits/{audit_id}/sets/{set_id}")
    def label_set(audit_id: AuditId, set_id: ClassId) -> Response:
        stored = found_label_audit(store, audit_id)
        found_set(store, audit_id, set_id)
        return HTMLResponse(pages.label_set(stored, set_id))

    @page("/compare")
    def compare() -> Response:
        return HTMLResponse(pages.compare())

    @page("/docs")
    def docs() -> Response:
        return HTMLResponse(pages.docs())

    @page("/playground")
    def playground() -> Response:
        return HTMLResponse(pages.playground())

    @page("/favicon.ico")
    def icon() -> Response:
        return FileResponse(
            _folder("uncork.web", "static") / "icon.svg", media_type="image/svg+xml"
        )

    @page("/playground/")
    def playground_folder() -> Response:
        return RedirectResponse("/playground")


def _kept_as(name: str) -> dict[str, str]:
    return {"content-disposition": f'attachment; filename="{name}"'}


def _found(store: Store, audit_id: int) -> StoredAudit:
    audit = queries.find_audit(store, audit_id)
    if audit is None:
        raise HTTPException(404, f"there is no audit {audit_id}")
    return audit


def _add_errors(app: FastAPI) -> None:
    def wants_page(request: Request) -> bool:
        return not request.url.path.startswith(("/api", "/openapi"))

    def answer(request: Request, status: int, text: str, detail: Any = None) -> Response:
        if wants_page(request):
            return HTMLResponse(pages.problem(status, text), status)
        return Json({"detail": text if detail is None else detail}, status)

    @app.exception_handler(AnyHTTPException)
    def http(request: Request, error: AnyHTTPException) -> Response:
        response = answer(request, error.status_code, str(error.detail))
        if error.headers:
            response.headers.update(error.headers)
        return response

    @app.exception_handler(RequestValidationError)
    def invalid(request: Request, error: RequestValidationError) -> Response:
        detail = [
            {"loc": list(problem["loc"]), "msg": problem["msg"], "type": problem["type"]}
            for problem in error.errors()
        ]
        return answer(request, 422, "the address holds a value that does not fit", detail)

    @app.exception_handler(UncorkError)
    def store_failed(request: Request, error: UncorkError) -> Response:
        return answer(request, 503, str(error))
