"""Tests skip for what may be absent, and for nothing else."""

from __future__ import annotations

import os
import signal

import pytest

from optional import skip_if_absent
from uncork.core.errors import UncorkError


@pytest.fixture
def without_gguf(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UNCORK_NEEDS_EVERYTHING", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("sys.modules", {})


@pytest.mark.usefixtures("without_gguf")
@pytest.mark.parametrize(
    "error",
    [
        ModuleNotFoundError("No module named 'gguf'", name="gguf.constants"),
        UncorkError("quantised blocks need gguf: pip install 'uncork[gguf]'"),
        "uncork: error: quantised blocks need gguf: pip install 'uncork[gguf]'\n",
    ],
)
def test_an_absent_library_skips(error: BaseException | str) -> None:
    with pytest.raises(pytest.skip.Exception, match="gguf is not installed"):
        skip_if_absent(error)


@pytest.mark.usefixtures("without_gguf")
def test_an_error_that_an_absent_library_led_to_skips() -> None:
    try:
        try:
            raise ModuleNotFoundError("No module named 'gguf'", name="gguf")
        except ModuleNotFoundError:
            raise UncorkError("cannot be read") from None
    except UncorkError as caught:
        with pytest.raises(pytest.skip.Exception, match="gguf is not installed"):
            skip_if_absent(caught)


@pytest.mark.usefixtures("without_gguf")
@pytest.mark.parametrize("name", ["uncork.misspelt", "numpy", "a_module_nobody_listed"])
def test_a_module_that_must_be_there_does_not_skip(name: str) -> None:
    skip_if_absent(ModuleNotFoundError(f"No module named {name!r}", name=name))


@pytest.mark.usefixtures("without_gguf")
def test_nothing_skips_where_everything_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNCORK_NEEDS_EVERYTHING", "1")
    skip_if_absent(ModuleNotFoundError("No module named 'gguf'", name="gguf"))


@pytest.mark.parametrize(
    "error",
    [
        AttributeError("module 'os' has no attribute 'mkfifo'", name="mkfifo", obj=os),
        AttributeError("module 'signal' has no attribute 'SIGKILL'", name="SIGKILL", obj=signal),
        ValueError("Unsupported signal: 2"),
        UncorkError("a sweep locks its folder as Linux and macOS do, which Windows cannot: …"),
    ],
)
def test_windows_skips_what_only_posix_has(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    skip_if_absent(error)
    monkeypatch.setattr("optional.os.name", "nt")
    with pytest.raises(pytest.skip.Exception, match="not on Windows"):
        skip_if_absent(error)
    monkeypatch.undo()
