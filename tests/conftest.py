"""Shared by all tests. Being here puts this folder on the path, so that `models` is found."""

import functools
import os

import typer.testing

# Triton's kernels run in its interpreter where there is no GPU. It has to be asked for before
# Triton is first imported, which other packages do.
if not os.path.exists("/dev/nvidiactl"):
    os.environ.setdefault("TRITON_INTERPRET", "1")

# Typer's runner makes all commands anew for every call, which takes longer than most calls do.
# The program itself makes them once.
typer.testing._get_command = functools.cache(typer.testing._get_command)
