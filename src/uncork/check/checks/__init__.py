"""The checks, in the order in which results are shown. A new one is a file and a line here."""

from __future__ import annotations

from uncork.check.checks.fragile import PRECISION, REAL_DOMAIN
from uncork.check.checks.label_count import LABEL_COUNT
from uncork.check.checks.label_forms import LABEL_FORMS
from uncork.check.checks.label_repeated import LABEL_MISSING, LABEL_REPEATED
from uncork.check.checks.label_text import LABEL_TEXT
from uncork.check.checks.lost import LOST, LOST_FREQUENT, LOST_SCRIPTS
from uncork.check.checks.must_never import FORBIDDEN, PADDING, RESERVED, SPECIAL
from uncork.check.checks.regressions import REGRESSIONS
from uncork.check.checks.row_length import ROW_LENGTH
from uncork.check.checks.row_rank import ROW_RANK
from uncork.check.checks.rows import ROW_EQUAL, ROW_NEAR, ROW_ZERO
from uncork.check.checks.source import CODES, SOURCE
from uncork.check.checks.unsettled import TIED, UNDECIDED
from uncork.check.protocol import Check

CHECKS: tuple[Check, ...] = (
    SOURCE,
    LOST,
    LOST_SCRIPTS,
    LOST_FREQUENT,
    TIED,
    UNDECIDED,
    PADDING,
    RESERVED,
    SPECIAL,
    FORBIDDEN,
    PRECISION,
    REAL_DOMAIN,
    LABEL_COUNT,
    LABEL_REPEATED,
    LABEL_MISSING,
    LABEL_TEXT,
    LABEL_FORMS,
    ROW_ZERO,
    ROW_EQUAL,
    ROW_NEAR,
    ROW_LENGTH,
    ROW_RANK,
    CODES,
    REGRESSIONS,
)
