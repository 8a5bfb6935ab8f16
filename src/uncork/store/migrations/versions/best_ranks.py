"""Bounds on the best rank of classes, where they were asked for."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    audit = sa.ForeignKey("audits.id")
    op.create_table(
        "best_ranks",
        sa.Column("audit_id", sa.Integer, audit, primary_key=True, autoincrement=False),
        sa.Column("class_id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("lower", sa.Integer, nullable=False),
        sa.Column("upper", sa.Integer, nullable=False),
        sqlite_with_rowid=False,
    )


def downgrade() -> None:
    op.drop_table("best_ranks")
