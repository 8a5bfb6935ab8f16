"""Tests that need what an installation may lack: skipped where it is absent, and they say so.

`pytest` then runs what it can wherever it is started; the matrix of .github/workflows/tests.yml
relies on it. Only what is listed here may be absent: any other module that cannot be imported is a
mistake, and fails. `make test` installs everything and sets UNCORK_NEEDS_EVERYTHING, with which
nothing may be absent.
"""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import sys
from collections.abc import Generator, Iterable

import pytest

# Extras of uncork, libraries whose files and results ours are compared with, and modules that only
# POSIX systems have.
OPTIONAL = {
    "accelerate", "ai_edge_litert", "alembic", "axe_playwright_python", "bitsandbytes",
    "check_jsonschema", "compressed_tensors", "dask", "distributed", "entmax", "fastapi",
    "fasttext", "flatbuffers", "gguf", "h5py", "hatchling", "httpx", "huggingface_hub",
    "joblib", "jsonschema", "keras", "lightning", "markdown", "markdown_it", "matplotlib",
    "mlflow", "mlx", "msgpack", "myst_parser", "onnx", "onnxruntime", "pandas", "peft", "PIL",
    "playwright", "psycopg", "pyarrow", "ray", "regex", "rjieba", "sacrebleu", "sacremoses",
    "safetensors", "sarif_pydantic", "schemathesis", "sentencepiece", "sklearn", "skops",
    "sphinx", "sqlalchemy", "starlette", "tensorboard", "tesserocr", "tiktoken", "tokenizers",
    "torch", "transformers", "triton", "uvicorn", "wandb", "yaml", "z3",
    "fcntl", "pty", "pwd", "resource", "termios",
}  # fmt: skip
# Where an extra, or a package, is not called what it is imported as.
_MODULES = {
    "cluster": ["distributed", "ray"], "hf": ["huggingface_hub"], "keras": ["h5py"],
    "pillow": ["PIL"], "plot": ["matplotlib"], "postgres": ["psycopg"],
    "store": ["sqlalchemy", "alembic"], "web": ["fastapi", "uvicorn"],
}  # fmt: skip
_ASKED_FOR = re.compile(r"pip install (?:'uncork\[(\w+)\]'|(\w+))")


def skip_what_was_absent() -> Generator[None, object, object]:
    """Around a part of a test: an error that an absent module led to skips the test."""
    try:
        return (yield)
    except Exception as error:
        skip_if_absent(error)
        raise


def skip_if_absent(error: BaseException | str | None) -> None:
    """Skip if an optional module that is absent led to `error`: an exception, or what a command
    printed."""
    while error is not None:
        missing = _absent(_named(error))
        if missing is not None:
            pytest.skip(f"{missing} is not installed", allow_module_level=True)
        if os.name == "nt" and _only_posix(error):
            pytest.skip(f"not on Windows: {error}", allow_module_level=True)
        error = None if isinstance(error, str) else error.__cause__ or error.__context__


def _only_posix(error: BaseException | str) -> bool:
    """Whether Windows lacks what was asked for: of os, signals, links, a sweep's lock."""
    if isinstance(error, AttributeError):
        return getattr(error, "obj", None) in (os, signal)
    refused = getattr(error, "winerror", None) == 1314  # links need a privilege
    return refused or "Unsupported signal" in str(error) or "which Windows cannot" in str(error)


def _named(error: BaseException | str) -> Iterable[str]:
    """The modules that an error names as missing."""
    if isinstance(error, ModuleNotFoundError) and error.name:
        return [error.name.partition(".")[0]]
    asked = _ASKED_FOR.search(str(error))
    if asked is None:
        return []
    name = asked[1] or asked[2]
    return _MODULES.get(name, [name])


def _absent(names: Iterable[str]) -> str | None:
    if "UNCORK_NEEDS_EVERYTHING" in os.environ:
        return None
    for name in names:
        if name in OPTIONAL and name not in sys.modules and importlib.util.find_spec(name) is None:
            return name
    return None
