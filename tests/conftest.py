"""Shared by all tests. Being here puts this folder on the path, so that `models` is found."""

import functools
import os
import random
import sys

import numpy as np
import pytest
import typer.testing

# Triton's kernels run in its interpreter where there is no GPU. It has to be asked for before
# Triton is first imported, which other packages do.
if not os.path.exists("/dev/nvidiactl"):
    os.environ.setdefault("TRITON_INTERPRET", "1")

# Typer's runner makes all commands anew for every call, which takes longer than most calls do.
# The program itself makes them once.
typer.testing._get_command = functools.cache(typer.testing._get_command)

# Another number makes every test draw other values, which is a way to look for bugs.
SEED = int(os.environ.get("UNCORK_TEST_SEED", "0"))


def pytest_runtest_setup(item: pytest.Function) -> None:
    """What a test draws does not depend on which ran before it in the same process."""
    random.seed(SEED)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(SEED)
    state = np.random.default_rng(SEED).bit_generator.state
    for value in vars(item.module).values():
        if isinstance(value, np.random.Generator):
            value.bit_generator.state = state
