"""store: results of many audits in one database, SQLite or PostgreSQL.

`Store` and `StoredAudit` are imported when first asked for: they need SQLAlchemy and Alembic, which
an audit does not.
"""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from typing import TYPE_CHECKING

from uncork.core.errors import UncorkError
from uncork.store.default import default_store

if TYPE_CHECKING:
    from uncork.store.queries import StoredAudit
    from uncork.store.store import Store

__all__ = ["Store", "StoredAudit", "default_store"]

_MODULES = {"Store": "uncork.store.store", "StoredAudit": "uncork.store.queries"}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    for library in ("sqlalchemy", "alembic"):
        if find_spec(library) is None:
            raise UncorkError(
                f"a store needs {library}, which is not installed: pip install 'uncork[store]'"
            )
    value: object = getattr(importlib.import_module(_MODULES[name]), name)
    globals()[name] = value
    return value
