"""The action of GitHub: its own steps, run here as a runner runs them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from schemas import problems

yaml = pytest.importorskip("yaml")
pytestmark = pytest.mark.skipif(os.name == "nt", reason="the steps are for bash")

ROOT = Path(__file__).resolve().parents[2]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
STEPS = ACTION["runs"]["steps"]
EXPRESSION = re.compile(r"\$\{\{\s*(.*?)\s*\}\}")


@dataclass
class GitHub:
    """As much of GitHub's API as commenting takes."""

    comments: list[dict[str, Any]] = field(default_factory=list)
    asked: list[tuple[str, str]] = field(default_factory=list)
    refuse: bool = False
    url: str = ""


class _Handler(BaseHTTPRequestHandler):
    hub: GitHub

    def log_message(self, *arguments: object) -> None:
        pass

    def _answer(self) -> None:
        self.hub.asked.append((self.command, self.path))
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        token = self.headers["Authorization"]
        if self.hub.refuse or token != "Bearer ghs_mine":
            return self._send(403, {})
        if self.command == "GET":
            return self._send(200, self.hub.comments)
        text = json.loads(body)["body"]
        if self.command == "PATCH":
            number = int(self.path.rpartition("/")[2])
            (comment,) = [one for one in self.hub.comments if one["id"] == number]
            comment["body"] = text
        else:
            comment = {"id": len(self.hub.comments) + 7, "body": text, "html_url": "http://c/1"}
            self.hub.comments.append(comment)
        return self._send(200, comment)

    do_GET = do_POST = do_PATCH = _answer

    def _send(self, status: int, content: Any) -> None:
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture
def github() -> Iterator[GitHub]:
    hub = GitHub(comments=[{"id": 1, "body": "somebody else's", "html_url": ""}])
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield hub
    server.shutdown()
    server.server_close()
    thread.join()


class Runner:
    """A runner's part: inputs, expressions, the files of a step, and what a condition says."""

    def __init__(self, folder: Path, github: GitHub, **inputs: str) -> None:
        self.folder, self.github = folder, github
        given = {name.replace("_", "-"): value for name, value in inputs.items()}
        assert set(given) <= set(ACTION["inputs"])
        defaults = {name: one.get("default", "") for name, one in ACTION["inputs"].items()}
        self.inputs = {**defaults, "token": "ghs_mine", **given}
        self.outputs: dict[str, dict[str, str]] = {}
        self.log = ""
        self.summary = folder / "summary.md"
        event = folder / "event.json"
        event.write_text(json.dumps({"number": 5}))
        programs = folder / "bin"
        programs.mkdir()
        for name, code in (("uncork", "-m uncork"), ("python", "")):
            (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {code} "$@"\n')
            (programs / name).chmod(0o755)
        self.environment = {
            "PATH": f"{programs}:{os.environ['PATH']}", "HOME": str(folder),
            "PYTHONPATH": os.pathsep.join(sys.path), "GITHUB_API_URL": github.url,
            "GITHUB_REPOSITORY": "me/mine", "GITHUB_EVENT_PATH": str(event),
            "RUNNER_TEMP": str(folder), "GITHUB_STEP_SUMMARY": str(self.summary),
            "OMP_NUM_THREADS": "1", "NO_PROXY": "127.0.0.1",
        }  # fmt: skip

    def value(self, text: str) -> str:
        return EXPRESSION.sub(lambda match: self._of(match[1]), text)

    def _of(self, expression: str) -> str:
        if expression.startswith("inputs."):
            return self.inputs[expression.removeprefix("inputs.")]
        if expression.startswith("steps."):
            _, step, _, name = expression.split(".")
            return self.outputs.get(step, {}).get(name, "")
        return {"github.action_path": str(ROOT)}[expression]

    def wanted(self, step: dict[str, Any]) -> bool:
        condition = step.get("if")
        if condition is None:
            return True
        assert condition == "inputs.comment == 'true' && github.event_name == 'pull_request'"
        return self.inputs["comment"] == "true"

    def run(self) -> int:
        """Every step with a script but the one that installs; the status of the last that ran."""
        for step in STEPS:
            if "run" not in step or step["id"] in ("install", "places") or not self.wanted(step):
                continue
            output = self.folder / f"{step['id']}.out"
            output.touch()
            own = {name: self.value(text) for name, text in step.get("env", {}).items()}
            done = subprocess.run(
                ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
                cwd=self.folder, capture_output=True, text=True, encoding="utf-8",
                env={**self.environment, **own, "GITHUB_OUTPUT": str(output)},
            )  # fmt: skip
            self.log += done.stdout + done.stderr
            pairs = (line.partition("=") for line in output.read_text("utf-8").splitlines())
            self.outputs[step["id"]] = {name: value for name, _, value in pairs}
            if done.returncode:
                return done.returncode
        return 0


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Four corners and the middle, which is lost; its name would break a script that trusts it."""
    path = tmp_path / "my $(touch pwned) 'model'.npz"
    corners = np.array([[1, 1], [1, -1], [-1, 1], [-1, -1], [0.1, 0]], dtype=np.float32)
    np.savez(path, weight=corners)
    return path


def test_the_run_is_annotated_summarised_and_fails(
    tmp_path: Path, github: GitHub, model: Path
) -> None:
    runner = Runner(tmp_path, github, model=model.name)
    assert runner.run() == 1
    assert "::error file=my $(touch pwned) 'model'.npz,line=1,title=uncork check lost::" in (
        runner.log
    )
    assert "| `lost` | ❌ fail |" in runner.summary.read_text("utf-8")
    found = runner.outputs["check"]
    assert (found["status"], found["outcome"]) == ("1", "fail")
    assert {path.name for path in Path(found["folder"]).iterdir()} == {
        "check.json", "check.md", "check.sarif", "report.html", "certificates.npz",
    }  # fmt: skip
    assert not (tmp_path / "pwned").exists()
    (_, comment) = github.comments
    assert comment["body"].startswith(
        "<!-- uncork check: my $(touch pwned) 'model'.npz -->\n### ❌"
    )


def test_a_later_run_replaces_its_comment_and_options_are_passed_on(
    tmp_path: Path, github: GitHub, model: Path
) -> None:
    mine = {"id": 9, "body": f"<!-- uncork check: {model.name} -->\nold", "html_url": "http://c/9"}
    github.comments.append(mine)
    (tmp_path / "my own.toml").write_text('[check]\nlost = "warn"\n')
    runner = Runner(tmp_path, github, model=model.name, options="--config 'my own.toml'")
    assert runner.run() == 0
    assert len(github.comments) == 2
    assert "⚠️ warn" in mine["body"]
    assert runner.outputs["check"]["outcome"] == "warn"


def test_a_token_that_may_not_comment_fails_nothing_more(
    tmp_path: Path, github: GitHub, model: Path
) -> None:
    github.refuse = True
    (tmp_path / "uncork.toml").write_text('[check]\nlost = "off"\n')
    runner = Runner(tmp_path, github, model=model.name)
    assert runner.run() == 0
    assert "::notice::uncork could not comment (403)" in runner.log


def test_bad_input_stops_the_action_with_its_own_status(tmp_path: Path, github: GitHub) -> None:
    runner = Runner(tmp_path, github, model="none.onnx", comment="false")
    assert runner.run() == 2
    assert "uncork: error: none.onnx does not exist" in runner.log
    assert github.asked == []


def test_no_script_has_an_expression_in_it() -> None:
    """A model's name goes through the environment: in a script it would be code."""
    for step in STEPS:
        assert "${{" not in step.get("run", "")


@pytest.mark.parametrize(
    ("path", "schema"),
    [
        ("action.yml", "github-actions"),
        (".github/workflows/tests.yml", "github-workflows"),
        (".github/workflows/release.yml", "github-workflows"),
    ],
)
def test_files_are_what_github_expects(path: str, schema: str) -> None:
    assert problems((ROOT / path).read_text("utf-8"), schema) == []


def test_a_release_has_notes_only_for_its_own_version(tmp_path: Path) -> None:
    script = ROOT / "integrations" / "changelog_section.py"
    package = tmp_path / "src" / "uncork"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text('__version__ = "1.2.0"\n')
    log = tmp_path / "CHANGELOG.md"

    def notes(tag: str) -> tuple[int, str]:
        code = f"import sys; sys.path.insert(0, {str(script.parent)!r}); from pathlib import Path; "
        code += "from changelog_section import section; "
        code += f"print(section({tag!r}, Path({str(tmp_path)!r})), end='')"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    log.write_text(
        "# Changelog\n\n## [1.2.0] - 2026-01-02\n\n- new\n\n## [1.1.0] - 2025\n\n- old\n"
    )
    assert notes("v1.2.0") == (0, "- new\n")
    assert notes("v1.1.0") == (1, "the tag is v1.1.0, and the package's version is 1.2.0\n")
    log.write_text("# Changelog\n\n## [1.2.0] - unreleased\n\n- new\n")
    assert notes("v1.2.0")[0] == 1
