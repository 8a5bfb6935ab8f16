"""Manifests: what they may say, and what is wrong with those that say something else."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.sweep.manifests import write_manifest

from uncork.core.errors import UncorkError
from uncork.sweep import read_manifest


def test_defaults_globs_names_and_groups(tmp_path: Path) -> None:
    tasks = read_manifest(write_manifest(tmp_path, 2))
    assert [task.name for task in tasks] == [
        "random:normal,50x3,seed=0", "random:normal,51x3,seed=1", "a", "b", "not there",
    ]  # fmt: skip
    assert [task.group for task in tasks] == ["Random", "Random", "", "", ""]
    assert [task.options["domain"] for task in tasks] == ["box:10"] * 2 + ["unbounded"] * 2 + [
        "box:10"
    ]
    assert tasks[2].source == str(tmp_path / "heads" / "a.npz")


def test_paths_are_in_full_wherever_workers_are_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lists").mkdir()
    Path("lists", "m.toml").write_text(
        '[defaults]\ndomain = "@seen.npz"\nlabels = "a.txt"\n[[model]]\nsource = "a.npz"\n'
        '[[model]]\nsource = "b.npz"\ndomain = "auto"\nlabels = "b.txt"'
    )
    first, second = read_manifest(Path("lists", "m.toml"))
    folder = tmp_path / "lists"
    assert first.source == str(folder / "a.npz")
    assert first.options == {"domain": f"@{folder / 'seen.npz'}", "labels": str(folder / "a.txt")}
    assert second.options == {"domain": "auto", "labels": str(folder / "b.txt")}


@pytest.mark.parametrize(("base", "hub"), [("base", False), ("hf:owner/base", True)])
def test_the_base_of_an_adapter_is_a_path_beside_the_manifest_or_a_hub_id(
    tmp_path: Path, base: str, hub: bool
) -> None:
    file = tmp_path / "m.toml"
    file.write_text(f'[[model]]\nsource = "adapter"\nbase = "{base}"')
    (task,) = read_manifest(file)
    assert task.options == {"base": base if hub else str(tmp_path / base)}


def test_the_same_model_named_twice_is_audited_once(tmp_path: Path) -> None:
    path = tmp_path / "m.toml"
    entry = '[[model]]\nsource = "random:normal,5x2,seed=0"\n'
    path.write_text(entry + entry + entry + 'domain = "unbounded"\n')
    assert len(read_manifest(path)) == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "names no model"),
        ("model = 3", "names no model"),
        ("x = 1", "expected \\[defaults\\] and \\[\\[model\\]\\]"),
        ("[[model]]\nname = 'x'", "number 1 has no source"),
        ("[[model]]\nsource = 'a'\ndomian = 'box:1'", "'domian', which is none of"),
        ("[[model]]\nsource = 'a'\ndomain = 'box:-1'", "number 1.*positive radius"),
        ("[[model]]\nsource = 'a'\npatience = 'long'", "patience = 'long' has the wrong type"),
        ("[[model]]\nsource = 'a'\npatience = true", "patience = True has the wrong type"),
        ("[[model]]\nsource = 'a'\ntime_limit = 0", "must be positive"),
        ("[[model]]\nsource = 'a'\nname = 5", "name must be text"),
        ("[[model]]\nsource = 'a'\nname = \"\\u001b[2J\"", "cannot be shown"),
        ("[[model]", "not valid TOML"),
        ("[defaults]\nsource = 'a'", "'source', which is none of"),
    ],
)
def test_a_wrong_manifest_is_explained(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "m.toml"
    path.write_text(text)
    with pytest.raises(UncorkError, match=message):
        read_manifest(path)


def test_a_missing_manifest_is_named(tmp_path: Path) -> None:
    with pytest.raises(UncorkError, match=r"none\.toml cannot be read: No such file"):
        read_manifest(tmp_path / "none.toml")


def test_a_glob_that_matches_nothing_stays_to_fail_by_name(tmp_path: Path) -> None:
    path = tmp_path / "m.toml"
    path.write_text('[[model]]\nsource = "*.onnx"')
    assert [task.source for task in read_manifest(path)] == [str(tmp_path / "*.onnx")]


def test_keys_that_begin_with_x_are_whoever_wrote_the_manifest_s(tmp_path: Path) -> None:
    file = tmp_path / "m.toml"
    file.write_text('[[model]]\nsource = "a.npz"\nx-paper = { lost = 3 }\n[defaults]\nx-why = 1')
    [task] = read_manifest(file)
    assert task.options == {}
