"""The source: whether it is certain which matrix this is, and whether it is stored as such."""

from __future__ import annotations

from uncork.check.protocol import Check, Condition, Finding
from uncork.check.subject import Subject

# What readers call types whose values are the weights themselves.
_NUMBERS = {"float64", "float32", "float16", "bfloat16", "f64", "f32", "f16", "bf16"}


def find_source(subject: Subject, condition: Condition) -> Finding:
    reading = subject.head.reading
    doubts = () if reading is None else reading.doubts
    if doubts:
        return Finding("; ".join(doubts), broken=True)
    name = "" if reading is None else f": {reading.weight}"
    return Finding(f"the source says which matrix is the head{name}", broken=False)


def find_codes(subject: Subject, condition: Condition) -> Finding:
    reading, found = subject.head.reading, subject.found
    said = [text for text in (() if reading is None else reading.folded) if "code" in text]
    stored = found.contents.tensors.get(found.weight_name)
    if not said and stored is not None and stored.dtype.lower() not in _NUMBERS:
        said = [f"{found.weight_name} is stored as {stored.dtype}"]
    if said:
        return Finding(
            "the weight is stored as codes, and verdicts are about the values they stand for: "
            + "; ".join(said),
            broken=True,
        )
    return Finding(f"the weight is stored as {subject.head.dtype} values", broken=False)


SOURCE = Check(
    "source",
    "The source settles which matrix is the head, and which side its classes are on.",
    "Name the tensors (--weight, --bias, --transpose).",
    find_source,
    limits={},
)
CODES = Check(
    "codes",
    "The weight is stored as numbers, not as codes.",
    "A runtime that multiplies codes may round differently: check the model as it runs "
    "(uncork audit --check).",
    find_codes,
    limits={},
)
