"""store: results of many audits in one database, SQLite or PostgreSQL."""

from uncork.store.queries import StoredAudit
from uncork.store.store import Store, default_store

__all__ = ["Store", "StoredAudit", "default_store"]
