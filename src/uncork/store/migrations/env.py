"""What Alembic runs to migrate a store: on the connection it is handed, in its transaction."""

from __future__ import annotations

from alembic import context

from uncork.store.schema import metadata

connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=metadata, render_as_batch=True)
context.run_migrations()
