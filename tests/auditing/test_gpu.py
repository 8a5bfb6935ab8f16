"""torch is imported to look for a GPU only where it may see one."""

from __future__ import annotations

import ctypes
import importlib.util
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from uncork.auditing import gpu

CPU = "__version__ = '2.13.0+cpu'\ncuda: Optional[str] = None\nhip: Optional[str] = None\n"
CUDA = CPU.replace("cuda: Optional[str] = None", "cuda: Optional[str] = '13.0'")
HIP = CPU.replace("hip: Optional[str] = None", "hip = '6.4.43484'")


@pytest.mark.parametrize(
    ("version", "driver", "possible"),
    [
        (CPU, True, False), (CUDA, False, False), (CUDA, True, True), (HIP, False, True),
        ("something else", False, True), (None, False, True),
    ],
)  # fmt: skip
def test_what_torch_was_built_for_decides(
    version: str | None, driver: bool, possible: bool, tmp_path: Path, monkeypatch: Any
) -> None:
    if version is not None:
        (tmp_path / "version.py").write_text(version)
    spec = SimpleNamespace(origin=str(tmp_path / "__init__.py"))

    def load(name: str) -> None:
        assert name == "libcuda.so.1"
        if not driver:
            raise OSError("not found")

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    monkeypatch.setattr(ctypes, "CDLL", load)
    monkeypatch.setattr(sys, "platform", "linux")
    assert gpu._possible() == possible


def test_without_torch_there_is_no_gpu(monkeypatch: Any) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert not gpu._possible()
    monkeypatch.setitem(sys.modules, "torch", None)
    assert not gpu.gpu_available()


def test_torch_answers_the_same() -> None:
    torch = pytest.importorskip("torch")
    asked = "import sys; from uncork.auditing import gpu; print(gpu.gpu_available())"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(torch.cuda.is_available())]


def test_an_audit_on_the_cpu_does_not_import_torch() -> None:
    torch = pytest.importorskip("torch")
    if torch.version.cuda is not None or torch.version.hip is not None:
        pytest.skip("torch is built for a GPU here")
    asked = (
        "import sys, uncork; from uncork.theory.random_heads import random_head; "
        "uncork.audit(random_head(9, 2)); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", asked], check=True)
