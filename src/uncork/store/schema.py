"""The store's tables. A change here needs a migration in `migrations/versions`."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    JSON,
    Boolean,
    Column,
    DateTime,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    SmallInteger,
    String,
    Table,
    Text,
    TypeDecorator,
)

# Part of what an audit is keyed by: raised when verdicts or margins may come out differently.
ALGORITHM_VERSION = 1

_ESCAPED = "\x1a"  # the first character of a text that is stored escaped


class AnyText(TypeDecorator[str]):
    """Text that may hold anything a token can: NUL and lone surrogates, which PostgreSQL's text
    and UTF-8 refuse, are stored escaped and come back as they were."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Any) -> str | None:
        if value is None:
            return None
        awkward = value.startswith(_ESCAPED) or "\x00" in value
        if not awkward:
            try:
                value.encode()
            except UnicodeEncodeError:
                awkward = True
        return _ESCAPED + value.encode("unicode_escape").decode("ascii") if awkward else value

    def process_result_value(self, value: str | None, dialect: Any) -> str | None:
        if value is None or not value.startswith(_ESCAPED):
            return value
        return value[1:].encode("ascii").decode("unicode_escape")


metadata = MetaData()

# One row for each different head, whatever it is called and wherever it lies.
models = Table(
    "models",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("fingerprint", String(80), nullable=False, unique=True),
    Column("classes", Integer, nullable=False),
    Column("features", Integer, nullable=False),
    Column("dtype", String(32), nullable=False),
    Column("has_bias", Boolean, nullable=False),
    # How items are compared; the scores of a head are inner products.
    Column("metric", String(16), nullable=False, server_default="inner"),
)

# One row for each audit: head, domain, algorithm and its version, and the classes asked for. What
# it is called stands in `runs`.
audits = Table(
    "audits",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("key", String(64), nullable=False, unique=True),
    Column("model_id", Integer, ForeignKey("models.id"), nullable=False, index=True),
    Column("domain", AnyText, nullable=False),
    Column("algorithm", String(16), nullable=False),
    Column("algorithm_version", Integer, nullable=False),
    Column("approximate", Boolean, nullable=False),
    Column("asked", Integer, nullable=False),  # how many classes were asked for
    Column("argmaxable", Integer, nullable=False),
    Column("unargmaxable", Integer, nullable=False),
    Column("tied", Integer, nullable=False),
    Column("undecided", Integer, nullable=False),
    Column("patience", Integer),  # of the reference algorithm, where its iterations were counted
    Column("potentially", Integer),  # classes it gave up on: potentially unargmaxable
    Column("proven", Boolean, nullable=False),
    Column("device", String(32), nullable=False),
    Column("seconds", JSON, nullable=False),
    Column("uncork", String(32), nullable=False),
    Column("created", DateTime(timezone=True), nullable=False),  # when its verdicts were decided
)

# One row for each name that an audit is stored under: heads that are equal, bit for bit, share
# their audit, and each keeps its own name, group, file and date.
runs = Table(
    "runs",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("key", String(64), nullable=False, unique=True),  # of audit, group and name
    Column("audit_id", Integer, ForeignKey("audits.id"), nullable=False, index=True),
    Column("name", AnyText, nullable=False),
    Column("group_name", AnyText, nullable=False),
    Column("source", AnyText, nullable=False),
    Column("certificates", AnyText),  # path of the certificate file
    Column("reading", JSON(none_as_null=True)),  # which tensors it is about: `Reading.as_dict`
    Column("created", DateTime(timezone=True), nullable=False),  # when it was stored last
)

# One row for each class of each audit.
results = Table(
    "results",
    metadata,
    Column("audit_id", Integer, ForeignKey("audits.id"), primary_key=True, autoincrement=False),
    Column("class_id", Integer, primary_key=True, autoincrement=False),
    Column("verdict", SmallInteger, nullable=False),
    Column("margin", Float),
    Column("iterations", Integer),  # of the reference algorithm
    Column("label", AnyText),
    Column("stolen_by", JSON(none_as_null=True)),  # [[class, share], …] of an unargmaxable class
    Column("reason", AnyText),  # why a class is undecided
    Index("results_by_verdict", "audit_id", "verdict", "class_id"),
    sqlite_with_rowid=False,
)

# One row for each class whose best rank was asked for: what was proven of it.
best_ranks = Table(
    "best_ranks",
    metadata,
    Column("audit_id", Integer, ForeignKey("audits.id"), primary_key=True, autoincrement=False),
    Column("class_id", Integer, primary_key=True, autoincrement=False),
    Column("lower", Integer, nullable=False),
    Column("upper", Integer, nullable=False),
    sqlite_with_rowid=False,
)

# One row for each time a model could not be audited, with what went wrong. It stays when the model
# could be audited later: `resolved` says when.
failures = Table(
    "failures",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("key", String(64), nullable=False, index=True),  # of source, options and weights
    Column("name", AnyText, nullable=False),
    Column("group_name", AnyText, nullable=False),
    Column("source", AnyText, nullable=False),
    Column("options", AnyText, nullable=False),  # JSON of what was asked for
    Column("weights", String(80), nullable=False),  # fingerprint; of the file if it was not read
    Column("error", AnyText, nullable=False),
    Column("created", DateTime(timezone=True), nullable=False),
    Column("resolved", DateTime(timezone=True)),
)

# One row for each time label sets of a multi-label head were decided: of equal head, domain,
# thresholds and sets there is one, the latest.
label_audits = Table(
    "label_audits",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("key", String(64), nullable=False, unique=True),
    Column("model_id", Integer, ForeignKey("models.id"), nullable=False, index=True),
    Column("name", AnyText, nullable=False),
    Column("source", AnyText, nullable=False),
    Column("domain", AnyText, nullable=False),
    Column("thresholds", JSON, nullable=False),  # of logits: one number, or one for each label
    Column("sets", Integer, nullable=False),
    Column("feasible", Integer, nullable=False),
    Column("infeasible", Integer, nullable=False),
    Column("undecided", Integer, nullable=False),
    Column("certificates", AnyText),  # path of the certificate file
    Column("reading", JSON(none_as_null=True)),
    Column("seconds", JSON, nullable=False),
    Column("uncork", String(32), nullable=False),
    Column("created", DateTime(timezone=True), nullable=False),
)

# One row for each set of each of them.
label_sets = Table(
    "label_sets",
    metadata,
    Column(
        "label_audit_id", Integer, ForeignKey("label_audits.id"), primary_key=True,
        autoincrement=False,
    ),
    Column("set_id", Integer, primary_key=True, autoincrement=False),
    Column("labels", JSON, nullable=False),  # numbers of the labels that are on
    Column("off", JSON(none_as_null=True)),  # where other labels are free: those that are off
    Column("verdict", SmallInteger, nullable=False),
    Column("margin", Float),
    Column("count", Integer, nullable=False),  # how often it occurs in the data
    Column("reason", AnyText),
    Column("names", AnyText),  # of `labels`, then of `off` (label_rows.py); none: not known
    Index("label_sets_by_verdict", "label_audit_id", "verdict", "set_id"),
    sqlite_with_rowid=False,
)  # fmt: skip
