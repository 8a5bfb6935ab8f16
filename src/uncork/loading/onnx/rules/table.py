"""The table of rules: which op of which domain and version is known, and by what theorem.

A rule is one function. It is given a node and what is known of its inputs, and gives what is known
of its results; its docstring is the theorem it stands on. An op that is not in the table, one of
another domain or version, a node with an attribute that its rule does not name, or of a type that
is not known: nothing is known of what it leaves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from uncork.loading.onnx.arriving.ranges import Ranges

OLDEST, NEWEST = 7, 28  # versions of the standard in which none of its ops is known to differ
Function = Callable[["Ranges", Any], Any]


class Nothing(Exception):
    """Raised by a rule: nothing is known of what the node leaves, and why not."""


@dataclass(frozen=True)
class Rule:
    """What is known of an op: from version `since` to `until`, with these attributes at most."""

    op: str
    since: int
    until: int
    attributes: frozenset[str]
    function: Function

    @property
    def theorem(self) -> str:
        return " ".join((self.function.__doc__ or "").split())


RULES: dict[str, list[Rule]] = {}


def rule(
    *ops: str, since: int = OLDEST, until: int = NEWEST, attributes: tuple[str, ...] = ()
) -> Callable[[Function], Function]:
    """Put a function into the table under each of these ops ("domain::Op" for other domains)."""

    def add(function: Function) -> Function:
        for op in ops:
            made = Rule(op, since, until, frozenset(attributes), function)
            RULES.setdefault(op, []).append(made)
        return function

    return add


def rule_for(op: str, opset: int, attributes: set[str]) -> Rule:
    """The rule of an op in that version of the standard; `Nothing` says why there is none."""
    every = RULES.get(op)
    if every is None:
        raise Nothing("there is no rule for this op")
    for found in every:
        if "::" in op or found.since <= opset <= found.until:
            more = attributes - found.attributes
            if more:
                raise Nothing(f"its rule does not cover {', '.join(sorted(more))}")
            return found
    raise Nothing(f"there is no rule for version {opset} of this op")


def as_markdown() -> str:
    """The table for people to read: one line a rule."""
    alike: dict[Any, list[Rule]] = {}
    for op in sorted(RULES, key=str.lower):
        for found in RULES[op]:
            span = "any" if "::" in op else f"{found.since}–{found.until}"
            alike.setdefault((found.function, span, found.attributes), []).append(found)
    lines = [
        "| ops | versions | attributes | what is known, and why |",
        "| --- | --- | --- | --- |",
    ]
    for (_, span, attributes), rules in alike.items():
        names = ", ".join(f"`{found.op}`" for found in rules)
        named = ", ".join(f"`{name}`" for name in sorted(attributes)) or "none"
        lines.append(f"| {names} | {span} | {named} | {rules[0].theorem} |")
    return "\n".join(lines) + "\n"
