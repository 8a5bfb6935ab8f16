"""Conditions from files: what can be said there, and what is refused with the nearest name."""

from __future__ import annotations

from pathlib import Path

import pytest
from made import MIDDLE, SQUARE, subject

from uncork import UncorkError
from uncork.check import CHECKS, Outcome, Severity, Suite, read_suite, run_checks
from uncork.check.conditions import OPTIONS

FIVE = [*SQUARE.tolist(), *MIDDLE.tolist()]


def suite_of(tmp_path: Path, text: str, name: str = "uncork.toml") -> Suite:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return read_suite(str(path))


def by_name(name: str) -> object:
    return next(check for check in CHECKS if check.name == name)


def test_without_a_file_every_check_has_its_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    suite = read_suite()
    assert suite == Suite()
    for check in CHECKS:
        assert suite.condition(check) == check.condition


def test_a_severity_is_a_word_or_part_of_a_table(tmp_path: Path) -> None:
    text = """
[check]
tied = "fail"
row-near = "off"
[check.lost]
severity = "warn"
most = 5
allow = ["e", 17]
"""
    suite = suite_of(tmp_path, text)
    assert suite.condition(by_name("tied")).severity is Severity.FAIL
    assert suite.condition(by_name("row-near")).severity is Severity.OFF
    lost = suite.condition(by_name("lost"))
    assert (lost.severity, lost["most"], lost.allow) == (Severity.WARN, 5, {"e", 17})


def test_what_is_off_is_not_run_and_a_warning_does_not_fail(tmp_path: Path) -> None:
    suite = suite_of(tmp_path, '[check]\nlost = "warn"\nrow-zero = "off"\n')
    checked = run_checks(subject(FIVE), suite)
    assert "row-zero" not in [result.name for result in checked.results]
    assert (checked.outcome, checked.failed) == (Outcome.WARN, False)
    assert run_checks(subject(FIVE), suite.with_strict(True)).failed


def test_pyproject_says_the_same_in_its_own_table(tmp_path: Path) -> None:
    text = '[project]\nname = "mine"\n[tool.ruff]\nx = 1\n[tool.uncork.check]\nlost = "warn"\n'
    suite = suite_of(tmp_path, text, "pyproject.toml")
    assert suite.condition(by_name("lost")).severity is Severity.WARN


def test_files_are_looked_for_in_this_folder_the_own_one_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "mine"\n')
    assert read_suite() == Suite()
    (tmp_path / "pyproject.toml").write_text('[tool.uncork.check]\nlost = "off"\n')
    assert read_suite().condition(by_name("lost")).severity is Severity.OFF
    (tmp_path / "uncork.toml").write_text('[check]\nlost = "warn"\n')
    assert read_suite().condition(by_name("lost")).severity is Severity.WARN


def test_files_that_it_names_lie_beside_it(tmp_path: Path) -> None:
    suite = suite_of(tmp_path, '[check]\nmust-not = "never.txt"\ndomain = "@real.json"\n')
    assert suite.option("must-not") == str(tmp_path / "never.txt")
    assert suite.option("domain") == f"@{tmp_path / 'real.json'}"
    assert suite.option("labels") is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[check]\nlsot = "warn"', "[check] has 'lsot': did you mean lost?"),
        ('[check]\nmust_not = "x"', "has 'must_not': did you mean must-not?"),
        ("[checks]\nlost = 1", "the file has 'checks': did you mean check?"),
        ("[check.lost]\nmots = 1", "[check.lost] has 'mots': did you mean most?"),
        ("[check.source]\nmost = 1", "[check.source] has 'most'"),
        ('[check]\nlost = "fial"', "severity 'fial': expected fail, warn, off: did you mean fail?"),
        ("[check]\nlost = 3", "[check.lost] is not a table"),
        ("[check.lost]\nmost = -1", "most = -1: expected a number, zero or more"),
        ("[check.lost]\nmost = true", "most = True: expected a number"),
        ('[check.lost]\nallow = "e"', "allow = e: expected a list of labels and class numbers"),
        ("[check]\nstrict = 1", "strict = 1: expected true or false"),
        ('[check]\ndomain = ""', "domain = : expected text"),
        ("check = 3", "[check] is not a table"),
        ("[check", "is not valid TOML"),
        ("\udcff", "is not valid TOML"),
    ],
)
def test_what_means_nothing_is_refused_with_the_nearest_name(
    tmp_path: Path, text: str, said: str
) -> None:
    path = tmp_path / "uncork.toml"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(UncorkError) as raised:
        read_suite(str(path))
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UncorkError, match="cannot be read: No such file"):
        read_suite(str(tmp_path / "none.toml"))


def test_no_option_is_called_like_a_check() -> None:
    assert not {check.name for check in CHECKS} & set(OPTIONS)
