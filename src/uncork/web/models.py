"""The answers of the API as types, for its OpenAPI description."""

from __future__ import annotations

from typing import Literal, TypeAlias

from pydantic import BaseModel, Field

VerdictName: TypeAlias = Literal["argmaxable", "unargmaxable", "tied", "undecided"]


class AuditItem(BaseModel):
    """One audit under one of its names, without its classes."""

    id: int = Field(description="of the audit: equal heads share it")
    run: int = Field(description="of the audit under this name")
    also: list[str] = Field(description="other names of the same audit")
    fingerprint: str = Field(description="SHA-256 of the weights")
    name: str
    group: str
    source: str
    classes: int
    features: int
    dtype: str
    has_bias: bool
    metric: str = Field(description="how items are compared; inner of every head")
    domain: str
    algorithm: str
    approximate: bool
    asked: int = Field(description="how many classes were asked about")
    argmaxable: int
    unargmaxable: int
    tied: int
    undecided: int
    patience: int | None
    potentially: int | None = Field(description="potentially unargmaxable, where that was counted")
    proven: bool
    device: str
    seconds: dict[str, float]
    certificates: str | None
    uncork: str = Field(description="version that made it")
    created: str = Field(description="ISO 8601")
    weight: str | None = Field(description="tensor that is the weight; null where not known")
    bias_tensor: str | None
    why: str = Field(description="why that tensor")
    folded: list[str] = Field(description="what was worked into the weight")
    labels_from: str | None
    preceded_by: str | None = Field(description="what the source shows before the head")
    doubts: list[str] = Field(description="what must be known first: the source leaves it open")
    notes: list[str] = Field(description="everything to be known of the head, doubts first")


class AuditPage(BaseModel):
    total: int
    items: list[AuditItem]
    next_offset: int | None


class ClassItem(BaseModel):
    """One class of one audit. JSON may hold any label: lone surrogates come as escapes."""

    class_: int = Field(alias="class")
    label: str | None = Field(description="cut after 256 characters, unless whole_labels is asked")
    label_length: int | None = Field(description="how long the whole label is")
    verdict: VerdictName
    margin: float | None = Field(description="lead at the witness, or minus the slack")
    iterations: int | None
    stolen_by: list[tuple[int, float]] | None
    reason: str | None


class ClassPage(BaseModel):
    total: int
    items: list[ClassItem]
    others: dict[str, str] = Field(description="labels of the classes that stolen_by names")
    next_after: int | None = Field(description="null also where another order was asked for")


class OddKind(BaseModel):
    """One kind of odd row; `first` names a few of its classes."""

    kind: str = Field(description="what the classes' odd parameter takes")
    name: str
    count: int
    lost: int = Field(description="how many of them are unargmaxable")
    groups: int
    first: list[tuple[int, str | None]]


class OddKinds(BaseModel):
    kinds: list[OddKind] | None
    weights: str = Field(description="why the weights are not at hand; empty where they are")


class Dots(BaseModel):
    """What a figure is drawn from: of classes on one spot one, and how many there are. Arrays are
    base64 of little-endian values: ids and counts int32, verdicts uint8, margins and across
    float32."""

    size: int | None = Field(description="classes in all; null where there is nothing to draw")
    ids: str | None
    verdicts: str | None
    margins: str | None
    ranks: str | None = Field(description="best ranks, where they were asked for")
    across: str | None
    counts: str | None
    weights: str = Field(description="why the weights are not at hand; empty where they are")


class ResultItem(ClassItem):
    audit: int
    name: str


class Place(BaseModel):
    audit: int
    class_: int = Field(alias="class")


class ResultPage(BaseModel):
    items: list[ResultItem]
    next_after: Place | None


class LostIds(BaseModel):
    audit: int
    name: str
    fingerprint: str
    domain: str
    ids: list[int]


class LostPage(BaseModel):
    items: list[LostIds]
    next_offset: int | None


class Part(BaseModel):
    class_: int = Field(alias="class")
    label: str | None
    verdict: VerdictName | None
    share: float


class MixtureItem(BaseModel):
    parts: list[Part]
    size: int | None = Field(description="how many classes it names; null: all of them take part")
    certified: bool = Field(description="certified against the weights just now, or only stored")


class Check(BaseModel):
    """What came of proving the stored verdict from the weights."""

    holds: bool | None = Field(description="null: not checked, or not decided")
    verdict: VerdictName | None = Field(description="what the weights prove")
    margin: float | None = Field(description="the margin proven with it")
    text: str


class Near(BaseModel):
    class_: int = Field(alias="class")
    label: str | None
    verdict: VerdictName | None
    distance: float


class Next(BaseModel):
    class_: int = Field(alias="class")
    label: str | None
    verdict: VerdictName | None
    lead: float


class Past(BaseModel):
    audit: int
    name: str
    created: str
    domain: str
    fingerprint: str
    class_: int | None = Field(alias="class")
    verdict: VerdictName | None
    margin: float | None


class ClassDetail(ClassItem):
    """One class with its proof, its nearest rows, and its history over audits of the same name."""

    audit: int
    name: str
    slack: float | None
    row_length: float | None
    best_rank_lower: int | None = Field(description="as stored; null where it was not asked for")
    best_rank_upper: int | None
    weights: str = Field(description="why the weights are not at hand; empty where they are")
    check: Check
    mixture: MixtureItem | None
    stored_parts: list[Part] = Field(description="the largest parts of the audit's own mixture")
    runners_up: list[Next] | None
    nearest: list[Near] | None
    history: list[Past]


class ClassOutlook(BaseModel):
    """Proven bounds on what any input can give a class; null where nothing is known."""

    probability_lower: float | None
    probability_upper: float | None
    best_rank_lower: int | None
    best_rank_upper: int | None
    bias_needed: float | None
    weights: str = Field(description="why the weights are not at hand; empty where they are")


class MovedClass(BaseModel):
    """A class of a head that is not stored: the audit's own, with this class's row moved; null
    where the weights are not at hand, or the moved row is none that they can hold."""

    verdict: VerdictName | None
    margin: float | None
    text: str | None = Field(description="how it was decided")
    bias: float | None = Field(description="of the class, moved, as the head's type holds it")
    row_length: float | None = Field(description="of the moved row")
    room: float | None = Field(description="how far a bias may be worth moving")
    mixture: MixtureItem | None
    runners_up: list[Next] | None
    seconds: float | None
    weights: str = Field(description="why nothing was decided; empty where something was")


SetVerdictName: TypeAlias = Literal["feasible", "infeasible", "undecided"]


class LabelAuditItem(BaseModel):
    """What was decided about label sets of one head, without the sets."""

    id: int
    name: str
    source: str
    fingerprint: str = Field(description="SHA-256 of the weights")
    labels: int
    features: int
    domain: str
    thresholds: float | list[float] = Field(description="logits: one for all labels, or one each")
    sets: int
    feasible: int
    infeasible: int
    undecided: int
    certificates: str | None
    seconds: dict[str, float]
    uncork: str = Field(description="version that made it")
    created: str = Field(description="ISO 8601")
    doubts: list[str] = Field(description="what must be known first: the source leaves it open")
    notes: list[str] = Field(description="everything to be known of the head, doubts first")


class LabelAuditPage(BaseModel):
    total: int
    items: list[LabelAuditItem]
    next_offset: int | None


class LabelSetItem(BaseModel):
    """One label set. Where `off` is a list, labels that are in neither list may be on or off."""

    set: int
    labels: list[int] = Field(description="labels that are on")
    names: list[str] | None = Field(description="of the first 64 of them, cut after 256 characters")
    off: list[int] | None
    off_names: list[str] | None
    verdict: SetVerdictName
    margin: float | None
    count: int = Field(description="how often it occurs in the data")
    reason: str | None


class LabelSetPage(BaseModel):
    total: int
    items: list[LabelSetItem]
    next_offset: int | None


class LabelPart(BaseModel):
    label: int
    name: str | None
    on: bool
    weight: float


class NearLabel(BaseModel):
    label: int
    name: str | None
    on: bool
    lead: float = Field(description="how far its logit is on the right side of its threshold")


class SetCheck(BaseModel):
    """What came of proving the stored verdict from the weights."""

    holds: bool | None = Field(description="null: not checked, or not decided")
    verdict: SetVerdictName | None = Field(description="what the weights prove")
    margin: float | None
    text: str


class LabelSetDetail(LabelSetItem):
    """One label set with its proof: a mixture of labels, or an input and what is near it."""

    label_audit: int
    weights: str = Field(description="why the weights are not at hand; empty where they are")
    check: SetCheck
    mixture: list[LabelPart] | None = Field(description="heaviest labels of the mixture")
    nearest: list[NearLabel] | None = Field(description="labels nearest to their thresholds")


class Counts(BaseModel):
    lost: int
    regained: int
    other: int
    added: int
    removed: int
    both: int = Field(description="unargmaxable in both; listed where they are asked for")


class Change(BaseModel):
    change: Literal["lost", "regained", "other", "added", "removed", "both"]
    label: str | None
    class_before: int | None
    class_after: int | None
    verdict_before: VerdictName | None
    verdict_after: VerdictName | None
    margin_before: float | None
    margin_after: float | None


class Comparison(BaseModel):
    before: AuditItem
    after: AuditItem
    matched_by: Literal["label", "class"]
    counts: Counts
    total: int
    changes: list[Change]
    next_offset: int | None


class Failure(BaseModel):
    name: str
    group: str
    source: str
    options: dict[str, str | bool | float]
    weights: str = Field(description="fingerprint of the head, or of its file")
    error: str
    created: str


class Failures(BaseModel):
    items: list[Failure]


class GroupNames(BaseModel):
    items: list[str]


class Problem(BaseModel):
    detail: str
