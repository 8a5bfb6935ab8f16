"""What was read: each audit's weight, bias, doubts and notes beside it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("audits", sa.Column("reading", sa.JSON))


def downgrade() -> None:
    with op.batch_alter_table("audits") as audits:
        audits.drop_column("reading")
