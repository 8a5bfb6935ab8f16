"""How the items of an index are compared: all there was before is about inner products."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    metric = sa.Column("metric", sa.String(16), nullable=False, server_default="inner")
    op.add_column("models", metric)


def downgrade() -> None:
    with op.batch_alter_table("models") as models:
        models.drop_column("metric")
