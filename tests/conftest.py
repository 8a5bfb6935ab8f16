"""Shared by all tests. Being here puts this folder on the path, so that `models` is found."""

import functools
import gc
import os
import random
import sys
from collections.abc import Generator
from pathlib import Path

import numpy as np
import pytest
import typer.testing

from browsers import chromium  # noqa: F401  (a fixture, for all)
from optional import skip_if_absent, skip_what_was_absent
from slow import is_slow, slow_tests

# Triton's kernels run in its interpreter where there is no GPU. It has to be asked for before
# Triton is first imported, which other packages do.
if not os.path.exists("/dev/nvidiactl"):
    os.environ.setdefault("TRITON_INTERPRET", "1")
    # Few tests compile with Inductor, and little; its pool of processes would import torch anew.
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

# Collecting imports every library, and all that is made stays: looking for garbage there found none
# and took a third of the time. What is there when it ends is not looked at again.
gc.disable()


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    gc.unfreeze()  # else libraries complain of objects of theirs that are left at the end


# Typer's runner makes all commands anew for every call, which takes longer than most calls do.
# The program itself makes them once.
typer.testing._get_command = functools.cache(typer.testing._get_command)

# Another number makes every test draw other values, which is a way to look for bugs.
SEED = int(os.environ.get("UNCORK_TEST_SEED", "0"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Function) -> Generator[None, object, object]:
    """What a test draws does not depend on which ran before it in the same process."""
    random.seed(SEED)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(SEED)
    state = np.random.default_rng(SEED).bit_generator.state
    for value in vars(item.module).values():
        if isinstance(value, np.random.Generator):
            value.bit_generator.state = state
    return (yield from skip_what_was_absent())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    return (yield from skip_what_was_absent())


class _Module(pytest.Module):
    """A file of tests that is skipped where a module that it imports may be absent, and is."""

    def _getobj(self) -> object:
        try:
            return super()._getobj()
        except Exception as error:
            skip_if_absent(error)
            raise


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module:
    return _Module.from_parent(parent, path=module_path)


SLOW = slow_tests()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """What is slow as a whole is not even imported where slow tests are left out."""
    chosen = "not slow" in (config.getoption("markexpr") or "")
    return True if chosen and is_slow(collection_path, None, SLOW) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that are listed as slow."""
    for item in items:
        if is_slow(item.path, getattr(item, "originalname", item.name), SLOW):
            item.add_marker(pytest.mark.slow)
