"""`uncork help`: every topic is short, true to the program, and leads to a page that is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from running import Run

from uncork.check import CHECKS
from uncork.cli.commands.help import TOPICS, topic_text
from uncork.cli.program import COMMANDS
from uncork.domain import parse_domain
from uncork.loading.chosen_classes import _KINDS

ROOT = Path(__file__).resolve().parents[2]


def test_without_a_topic_all_are_listed(run: Run) -> None:
    done = run("help")
    assert done.status == 0
    assert [line.split()[0] for line in done.out.splitlines()[: len(TOPICS)]] == list(TOPICS)


@pytest.mark.parametrize("topic", TOPICS)
def test_a_topic_is_short_and_leads_to_pages_that_are_there(run: Run, topic: str) -> None:
    text = run("help", topic).out
    assert text == topic_text(topic)
    lines = text.splitlines()
    assert len(lines) < 70
    assert max(map(len, lines)) <= 84
    assert lines[0].endswith(".")
    pages = re.findall(r"docs/[\w/.-]+\.md", lines[-1])
    assert pages
    assert all((ROOT / page).is_file() for page in pages)


def test_the_topics_say_what_the_program_takes() -> None:
    for spec in re.findall(r"^(box:\S+|ball:\S+|unbounded)", topic_text("domains"), re.M):
        parse_domain(spec)
    assert all(re.search(rf"\b{kind}\b", topic_text("classes")) for kind in _KINDS)
    assert all(re.search(rf"^{check.name} \(", topic_text("checks"), re.M) for check in CHECKS)
    example = re.search(r"^    \[check\].*?\n\n(?=\S)", topic_text("conditions"), re.M | re.S)
    assert example is not None


def test_the_example_of_conditions_is_read(tmp_path: Path) -> None:
    from uncork.check import read_suite

    lines = topic_text("conditions").splitlines()
    path = tmp_path / "uncork.toml"
    path.write_text("\n".join(line[4:] for line in lines if line.startswith("    ")))
    suite = read_suite(str(path))
    assert suite.strict
    (lost,) = [check for check in CHECKS if check.name == "lost"]
    assert suite.condition(lost).allow == {"<unk>", 17}


def test_every_topic_has_its_file_and_no_other_is_there() -> None:
    there = {path.stem for path in (ROOT / "src/uncork/cli/topics").iterdir()}
    assert there == set(TOPICS) - {"checks"}


def test_a_command_is_explained_as_by_its_own_option(run: Run) -> None:
    assert run("help", "verify").out.rstrip() == run("verify", "--help").out.rstrip()
    assert not set(TOPICS) & {name for names in COMMANDS.values() for name in names}


def test_what_is_not_known_is_refused_with_the_nearest_name(run: Run) -> None:
    assert "did you mean verdicts?" in run("help", "verdict").error
    assert "topics are verdicts, domains" in run("help", "zzz").error
