"""The table of rules in the documentation is the one that is used."""

from __future__ import annotations

from pathlib import Path

from uncork.loading.onnx import ranges  # noqa: F401  (fills the table)
from uncork.loading.onnx.rules.table import RULES, as_markdown

DOCS = Path(__file__).parents[2] / "docs" / "domains.md"


def test_every_rule_names_the_theorem_it_stands_on() -> None:
    for rules in RULES.values():
        assert all(len(rule.theorem) > 10 for rule in rules)


def test_the_documented_table_is_the_one_in_use() -> None:
    """To write it anew: `python -c "…as_markdown()"` between the two marks of docs/domains.md."""
    text = DOCS.read_text(encoding="utf-8")
    _, _, rest = text.partition("<!-- rules -->\n\n")
    written, mark, _ = rest.partition("\n<!-- end of rules -->")
    assert mark
    assert written == as_markdown()
