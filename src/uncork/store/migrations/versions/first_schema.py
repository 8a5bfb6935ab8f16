"""The first schema: models, audits, results, failures."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from uncork.store.schema import AnyText

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "models",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("fingerprint", sa.String(80), nullable=False, unique=True),
        sa.Column("classes", sa.Integer, nullable=False),
        sa.Column("features", sa.Integer, nullable=False),
        sa.Column("dtype", sa.String(32), nullable=False),
        sa.Column("has_bias", sa.Boolean, nullable=False),
    )
    op.create_table(
        "audits",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("key", sa.String(64), nullable=False, unique=True),
        sa.Column("model_id", sa.Integer, sa.ForeignKey("models.id"), nullable=False),
        sa.Column("name", AnyText, nullable=False),
        sa.Column("group_name", AnyText, nullable=False),
        sa.Column("source", AnyText, nullable=False),
        sa.Column("domain", AnyText, nullable=False),
        sa.Column("algorithm", sa.String(16), nullable=False),
        sa.Column("algorithm_version", sa.Integer, nullable=False),
        sa.Column("approximate", sa.Boolean, nullable=False),
        sa.Column("asked", sa.Integer, nullable=False),
        sa.Column("argmaxable", sa.Integer, nullable=False),
        sa.Column("unargmaxable", sa.Integer, nullable=False),
        sa.Column("tied", sa.Integer, nullable=False),
        sa.Column("undecided", sa.Integer, nullable=False),
        sa.Column("patience", sa.Integer),
        sa.Column("potentially", sa.Integer),
        sa.Column("proven", sa.Boolean, nullable=False),
        sa.Column("device", sa.String(32), nullable=False),
        sa.Column("seconds", sa.JSON, nullable=False),
        sa.Column("certificates", AnyText),
        sa.Column("uncork", sa.String(32), nullable=False),
        sa.Column("created", sa.DateTime(timezone=True), nullable=False),
    )
    op.create_index("ix_audits_model_id", "audits", ["model_id"])
    op.create_table(
        "results",
        sa.Column(
            "audit_id",
            sa.Integer,
            sa.ForeignKey("audits.id"),
            primary_key=True,
            autoincrement=False,
        ),
        sa.Column("class_id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("verdict", sa.SmallInteger, nullable=False),
        sa.Column("margin", sa.Float),
        sa.Column("iterations", sa.Integer),
        sa.Column("label", AnyText),
        sa.Column("stolen_by", sa.JSON),
        sa.Column("reason", AnyText),
        sqlite_with_rowid=False,
    )
    op.create_index("results_by_verdict", "results", ["audit_id", "verdict", "class_id"])
    op.create_table(
        "failures",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("key", sa.String(64), nullable=False, unique=True),
        sa.Column("name", AnyText, nullable=False),
        sa.Column("group_name", AnyText, nullable=False),
        sa.Column("source", AnyText, nullable=False),
        sa.Column("error", AnyText, nullable=False),
        sa.Column("created", sa.DateTime(timezone=True), nullable=False),
    )


def downgrade() -> None:
    for table in ("failures", "results", "audits", "models"):
        op.drop_table(table)
