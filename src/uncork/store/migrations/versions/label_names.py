"""The names of a set's labels beside their numbers: what pages show and search."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("label_sets", sa.Column("names", sa.Text))


def downgrade() -> None:
    with op.batch_alter_table("label_sets") as label_sets:
        label_sets.drop_column("names")
