"""pre-commit's hook, the container and what other pipelines are shown."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from schemas import problems

from uncork.cli import hook

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).resolve().parents[2]
SQUARE = np.array([[1, 1], [1, -1], [-1, 1], [-1, -1]], dtype=np.float32)


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    np.savez("sound.npz", weight=SQUARE)
    np.savez("lost.npz", weight=np.vstack([SQUARE, [[0.1, 0]]]).astype(np.float32))
    return tmp_path


def test_every_file_is_checked_and_the_worst_status_counts(
    models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert hook.main(["sound.npz"]) == 0
    assert hook.main(["sound.npz", "lost.npz", "sound.npz"]) == 1
    assert capsys.readouterr().out.count("sound.npz\n") == 3
    assert hook.main(["lost.npz", "none.npz"]) == 2
    assert hook.main([]) == 0


def test_options_come_before_the_files(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (models / "lax.toml").write_text('[check]\nlost = "warn"\n')
    assert hook.main(["--config=lax.toml", "lost.npz"]) == 0
    assert hook.main(["--config=lax.toml", "--strict", "--", "lost.npz"]) == 1
    assert "warn  lost" in capsys.readouterr().out


def test_the_hook_runs_what_is_there() -> None:
    (declared,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text("utf-8"))
    assert declared["entry"] == f"python -m {hook.__name__}"
    assert declared["language"] == "python"
    pattern = re.compile(declared["files"])
    assert pattern.search("models/a.onnx")
    assert not pattern.search("a.onnx.md")
    done = subprocess.run(
        [sys.executable, *declared["entry"].split()[1:], "none.onnx"], capture_output=True
    )
    assert done.returncode == 2


def test_the_container_is_written_as_its_linter_asks() -> None:
    program = shutil.which("hadolint", path=str(Path(sys.executable).parent))
    if program is None:
        pytest.skip("hadolint is not installed")
    done = subprocess.run([program, ROOT / "Dockerfile"], capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("", 0)


def test_the_container_copies_what_is_there_and_its_build_needs_nothing_else() -> None:
    text = (ROOT / "Dockerfile").read_text("utf-8").replace("\\\n", " ")
    sources = [line.split()[1:-1] for line in text.splitlines() if line.startswith("COPY ")]
    named = [name for line in sources for name in line if not name.startswith(("-", "/"))]
    assert all((ROOT / name).exists() for name in named)
    ignored = (ROOT / ".dockerignore").read_text("utf-8").split()
    assert {name.removeprefix("!") for name in ignored if name.startswith("!")} == set(named)
    extras = re.search(r'"\.\[(.*)\]"', text)
    assert extras is not None
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    assert all(re.search(rf"^{extra} = ", project, re.M) for extra in extras[1].split(","))


def test_the_pipelines_that_the_guide_shows_are_valid() -> None:
    page = (ROOT / "docs" / "how-to" / "check-in-ci.md").read_text("utf-8")
    seen = set()
    for block in re.findall(r"```yaml\n(.*?)```", page, re.S):
        content = yaml.safe_load(block)
        if "repos" in content:
            assert content["repos"][0]["hooks"][0]["id"] == "uncork-check"
            seen.add("pre-commit")
            continue
        kind = "github-workflows" if "jobs" in content else "gitlab-ci"
        assert problems(block, kind) == []
        seen.add(kind)
    assert seen == {"github-workflows", "gitlab-ci", "pre-commit"}


def test_the_guide_names_every_input_and_output_of_the_action() -> None:
    page = (ROOT / "docs" / "how-to" / "check-in-ci.md").read_text("utf-8")
    action = yaml.safe_load((ROOT / "action.yml").read_text("utf-8"))
    for name in (*action["inputs"], *action["outputs"]):
        assert f"`{name}`" in page, name
