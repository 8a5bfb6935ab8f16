"""The table of rules in the documentation is the one that is used."""

from __future__ import annotations

from pathlib import Path

from uncork.loading.onnx.arriving import ranges  # noqa: F401  (fills the table)
from uncork.loading.onnx.rules.table import RULES, as_markdown

DOCS = Path(__file__).parents[2] / "docs" / "reference" / "domain-rules.md"


def test_every_rule_names_the_theorem_it_stands_on() -> None:
    for rules in RULES.values():
        assert all(len(rule.theorem) > 10 for rule in rules)


def test_the_documented_table_is_the_one_in_use() -> None:
    """`make docs-reference` writes it anew."""
    text = DOCS.read_text(encoding="utf-8")
    _, mark, rest = text.partition("begin -->\n\n")
    written, end, _ = rest.partition("\n<!-- end -->")
    assert mark
    assert end
    assert written == as_markdown()
