"""The files around the code say what is true: workflow, hooks, citation, metadata."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

import uncork
from slow import WHOLE, slow_tests

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS = PROJECT["project"]["optional-dependencies"]


def parsed(path: str) -> Any:
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


def workflow_commands() -> list[list[str]]:
    """Every command of the workflow, as a shell would split it."""
    jobs = parsed(".github/workflows/tests.yml")["jobs"]
    steps = [step for job in jobs.values() for step in job["steps"]]
    return [shlex.split(step["run"]) for step in steps if "run" in step]


def make_targets() -> set[str]:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    return set(re.findall(r"^([a-z][\w-]*):", text, re.MULTILINE))


def test_every_command_of_the_workflow_exists() -> None:
    commands = workflow_commands()
    for words in commands:
        match words:
            case ["make", target, *_]:
                assert target in make_targets()
            case ["python", "-m", "pytest", *options]:
                assert {"-n", "--dist"} >= {option for option in options if option.startswith("-")}
            case ["python", "-m", "pip", "install", "-e", what, *_]:
                assert set(re.search(r"\[(.*)\]", what)[1].split(",")) <= set(EXTRAS)
            case [".ci/run"]:
                assert (ROOT / ".ci/run").stat().st_mode & 0o100
            case _:
                pytest.fail(f"unknown command in the workflow: {words}")
    assert {"make", "python", ".ci/run"} <= {words[0] for words in commands}


def test_the_workflow_covers_the_systems_and_versions_that_are_promised() -> None:
    jobs = parsed(".github/workflows/tests.yml")["jobs"]
    core = jobs["core"]["strategy"]["matrix"]
    assert {system.split("-")[0] for system in core["os"]} == {"ubuntu", "macos", "windows"}
    said = [
        classifier.rpartition(" ")[2]
        for classifier in PROJECT["project"]["classifiers"]
        if re.fullmatch(r"Programming Language :: Python :: 3\.\d+", classifier)
    ]
    assert core["python"] == said
    assert PROJECT["project"]["requires-python"] == f">={said[0]}"
    oldest, newest = jobs["torch"]["strategy"]["matrix"]["torch"]
    assert EXTRAS["torch"] == [f"torch>={oldest.removesuffix('.0')}"]
    assert f"torch=={newest}" in EXTRAS["test"]


def test_the_templates_and_hooks_parse_and_are_complete() -> None:
    for path in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"):
        form = yaml.safe_load(path.read_text(encoding="utf-8"))
        if path.stem != "config":
            assert {"name", "description", "body"} <= set(form), path
            assert all(field["type"] and field["attributes"] for field in form["body"]), path
    (local,) = parsed(".pre-commit-config.yaml")["repos"]
    assert [hook["id"] for hook in local["hooks"]] == ["ruff", "ruff-format", "mypy"]
    assert all(hook["language"] == "system" for hook in local["hooks"])


def test_the_version_stands_once_and_the_citation_agrees() -> None:
    assert PROJECT["project"]["dynamic"] == ["version"]
    assert PROJECT["tool"]["hatch"]["version"]["path"] == "src/uncork/__init__.py"
    cited = parsed("CITATION.cff")
    assert str(cited["version"]) == uncork.__version__
    assert cited["repository-code"] == PROJECT["project"]["urls"]["Source"]
    assert cited["license"] == PROJECT["project"]["license"]
    assert cited["keywords"] == PROJECT["project"]["keywords"]


def test_the_citation_is_complete() -> None:
    cited = parsed("CITATION.cff")
    assert {"cff-version", "message", "title", "authors"} <= set(cited)
    for reference in cited["references"]:
        assert {"type", "title", "authors", "year"} <= set(reference)
        assert "doi" in reference or "url" in reference, reference["title"]
    families = {reference["authors"][0]["family-names"] for reference in cited["references"]}
    assert {"Grivas", "Yang", "Martins", "Peters", "Tezekbayev"} <= families


def test_links_between_the_projects_own_files_lead_somewhere() -> None:
    for name in ("CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md"):
        text = (ROOT / name).read_text(encoding="utf-8")
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", text):
            assert (ROOT / target).exists(), f"{name} links to {target}"


def test_all_extras_for_users_are_in_all() -> None:
    apart = {"all", "docs", "test", "test-core"}
    listed = set(re.fullmatch(r"uncork\[(.*)\]", EXTRAS["all"][0])[1].split(","))
    assert listed == set(EXTRAS) - apart
    for extra in ("web", "postgres", "cluster"):
        assert "uncork[store]" in EXTRAS[extra]


def test_what_make_quick_leaves_out_is_there() -> None:
    tests = ROOT / "tests"
    names = {path.name: path.read_text(encoding="utf-8") for path in tests.rglob("test_*.py")}
    for line in WHOLE:
        assert (tests / line).is_dir() if line.endswith("/") else line in names, line
    listed = [line.split("::") for line in slow_tests() if "::" in line]
    found = [name for file, name in listed if f"def {name}(" in names.get(file, "")]
    assert len(found) > 0.8 * len(listed), "tests/slow.txt is out of date: see tests/slow.py"


def test_what_everybody_gets_is_what_an_audit_imports() -> None:
    """A dependency that only other commands need belongs into an extra."""
    rooms = ("core", "domain", "loading", "auditing", "report", "cli")
    source = ROOT / "src" / "uncork"
    text = "\n".join(
        path.read_text(encoding="utf-8") for room in rooms for path in (source / room).rglob("*.py")
    )
    imported = set(re.findall(r"^\s*(?:import|from) (\w+)", text, re.M))
    needed = {
        re.split(r"[>=<; ]", line)[0].replace("-", "_")
        for line in PROJECT["project"]["dependencies"]
    }
    assert needed - {"tomli"} <= imported  # sweeps and checks read TOML, before Python 3.11
    assert "tomli" in (source / "check" / "conditions.py").read_text(encoding="utf-8")
