"""store: results of many audits in one database, SQLite or PostgreSQL."""

from uncork.store.default import default_store
from uncork.store.queries import StoredAudit
from uncork.store.store import Store

__all__ = ["Store", "StoredAudit", "default_store"]
