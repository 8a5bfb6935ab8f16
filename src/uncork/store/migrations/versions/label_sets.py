"""Label sets of multi-label heads: what was decided, and every set."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "label_audits",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("key", sa.String(64), nullable=False, unique=True),
        sa.Column("model_id", sa.Integer, sa.ForeignKey("models.id"), nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("domain", sa.Text, nullable=False),
        sa.Column("thresholds", sa.JSON, nullable=False),
        sa.Column("sets", sa.Integer, nullable=False),
        sa.Column("feasible", sa.Integer, nullable=False),
        sa.Column("infeasible", sa.Integer, nullable=False),
        sa.Column("undecided", sa.Integer, nullable=False),
        sa.Column("certificates", sa.Text),
        sa.Column("reading", sa.JSON(none_as_null=True)),
        sa.Column("seconds", sa.JSON, nullable=False),
        sa.Column("uncork", sa.String(32), nullable=False),
        sa.Column("created", sa.DateTime(timezone=True), nullable=False),
    )
    op.create_index("ix_label_audits_model_id", "label_audits", ["model_id"])
    op.create_table(
        "label_sets",
        sa.Column(
            "label_audit_id", sa.Integer, sa.ForeignKey("label_audits.id"), primary_key=True,
            autoincrement=False,
        ),
        sa.Column("set_id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("labels", sa.JSON, nullable=False),
        sa.Column("off", sa.JSON(none_as_null=True)),
        sa.Column("verdict", sa.SmallInteger, nullable=False),
        sa.Column("margin", sa.Float),
        sa.Column("count", sa.Integer, nullable=False),
        sa.Column("reason", sa.Text),
        sqlite_with_rowid=False,
    )  # fmt: skip
    op.create_index("label_sets_by_verdict", "label_sets", ["label_audit_id", "verdict", "set_id"])


def downgrade() -> None:
    op.drop_table("label_sets")
    op.drop_table("label_audits")
