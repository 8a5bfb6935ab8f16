"""What a check writes: every format read again by something that knows it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from made import MIDDLE, SQUARE, subject

from uncork.check import Checked, Suite, run_checks
from uncork.check.formats import FORMATS
from uncork.check.run import Kept
from uncork.loading.contents import Vocabulary

# A lost class whose label is whatever a format could stumble over.
NASTY = "::error::<b>|`*_[x](y)@all%0A\n\x1b[31m]]>&amp;"
LABELS = Vocabulary(("a", "b", "c", "d", NASTY), "made")


@pytest.fixture(scope="module")
def checked() -> Checked:
    made = subject([*SQUARE.tolist(), *MIDDLE.tolist()], vocabulary=LABELS)
    done = run_checks(made, Suite())
    return replace(done, report="out/page.html", certificates=Kept("out/proofs.npz", "ab" * 32))


def test_text_has_a_line_for_each_check_and_nothing_that_steers_a_terminal(
    checked: Checked,
) -> None:
    text = FORMATS["text"](checked)
    for result in checked.results:
        assert re.search(rf"^(pass|warn|fail|–   )  {result.name} ", text, re.M)
    assert all(c.isprintable() or c == "\n" for c in text)
    assert "out/page.html#class=4" in text
    assert text.splitlines()[-2].startswith("1 failed, 1 warned")
    assert text.splitlines()[-1] == f"certificates out/proofs.npz, sha256 {'ab' * 32}"


def test_json_has_everything(checked: Checked) -> None:
    found = json.loads(FORMATS["json"](checked))
    assert found["outcome"] == "fail"
    assert found["failed"] is True
    assert found["counts"]["fail"] == 1
    assert found["certificates"] == {"file": "out/proofs.npz", "sha256": "ab" * 32}
    (lost,) = [one for one in found["checks"] if one["name"] == "lost"]
    assert lost["classes"][0]["class"] == 4
    assert lost["classes"][0]["label"] == NASTY
    assert lost["link"] == "out/page.html#class=4"
    assert {one["outcome"] for one in found["checks"]} == {"pass", "warn", "fail", "not applicable"}


def test_junit_has_a_test_for_each_check(checked: Checked) -> None:
    (suite,) = ElementTree.fromstring(FORMATS["junit"](checked))
    cases = {case.get("name"): case for case in suite.iter("testcase")}
    assert list(cases) == [result.name for result in checked.results]
    assert suite.get("tests") == str(len(cases))
    assert suite.get("failures") == "1"
    assert suite.get("skipped") == str(len(list(suite.iter("skipped"))))
    failure = cases["lost"].find("failure")
    assert failure is not None
    assert "class 4" in (failure.text or "")
    assert cases["label-text"].find("failure") is None
    assert (cases["label-text"].find("system-out").text or "").startswith("warn: ")
    (suite,) = ElementTree.fromstring(FORMATS["junit"](replace(checked, strict=True)))
    assert suite.get("failures") == "2"


def test_sarif_is_sarif(checked: Checked) -> None:
    text = FORMATS["sarif"](checked)
    sarif = pytest.importorskip("sarif_pydantic")
    (run,) = sarif.Sarif.model_validate_json(text).runs
    found = json.loads(text)["runs"][0]
    rules = found["tool"]["driver"]["rules"]
    assert [rule["id"] for rule in rules] == [result.name for result in checked.results]
    assert len(run.results) == len(rules)
    for result in found["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        # §3.27.10: a level other than none goes with the kind fail alone.
        assert (result["level"] == "none") == (result["kind"] != "fail")
    levels = {result["ruleId"]: result["level"] for result in found["results"]}
    assert (levels["lost"], levels["label-text"], levels["tied"]) == ("error", "warning", "none")
    (lost,) = [result for result in found["results"] if result["ruleId"] == "lost"]
    place = lost["locations"][0]
    assert place["physicalLocation"]["artifactLocation"]["uri"] == "made.npz"
    assert place["logicalLocations"][0]["fullyQualifiedName"] == "class 4"


def commands(text: str) -> list[tuple[str, dict[str, str], str]]:
    """Workflow commands as a runner reads them: ::name key=value,…::data at the start of a line."""
    found = []
    for line in text.split("\n"):
        match = re.match(r"\s*::(\w[\w-]*)(?: ([^:]*))?::(.*)", line)
        if match:
            pairs = (pair.split("=", 1) for pair in (match[2] or "").split(",") if pair)
            found.append((match[1], {key: _unescaped(value) for key, value in pairs},
                          _unescaped(match[3])))  # fmt: skip
    return found


def _unescaped(text: str) -> str:
    for code, character in (("%3A", ":"), ("%2C", ","), ("%0D", "\r"), ("%0A", "\n"), ("%25", "%")):
        text = text.replace(code, character)
    return text


def test_github_annotates_what_did_not_pass_and_no_label_is_a_command(checked: Checked) -> None:
    found = commands(FORMATS["github"](checked))
    assert [name for name, _, _ in found] == ["error", "warning", "group", "endgroup"]
    _, settings, data = found[0]
    assert settings == {"file": "made.npz", "line": "1", "title": "uncork check lost"}
    assert data.startswith("1 of 5 ordinary classes can never be first")
    assert "uncork repair" in data


def test_markdown_is_a_table_in_which_no_label_is_markup(checked: Checked) -> None:
    text = FORMATS["markdown"](checked)
    markdown = pytest.importorskip("markdown_it")
    tokens = markdown.MarkdownIt("commonmark").enable("table").parse(text)
    kinds = [token.type for token in tokens]
    assert kinds.count("table_open") == 1
    applying = [one for one in checked.results if one.outcome.value != "not applicable"]
    assert kinds.count("tr_open") == len(applying) + 2  # the header, and those that do not apply
    inline = [child for token in tokens for child in token.children or ()]
    links = [child.attrGet("href") for child in inline if child.type == "link_open"]
    assert set(links) == {"out/page.html#class=4"}
    tags = {child.content for child in inline if child.type == "html_inline"}
    assert tags <= {"<sub>", "</sub>"}
    assert "@all" not in text
    assert text.startswith("### ❌ fail: made")


def test_every_format_ends_in_a_newline_and_encodes(checked: Checked) -> None:
    for write in FORMATS.values():
        text = write(checked)
        assert text.endswith("\n")
        text.encode("utf-8")
