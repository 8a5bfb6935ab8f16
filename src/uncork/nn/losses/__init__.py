"""The losses: what each is (`specification`), the core they share (`fenchel_young`), their forms.

To add one, write a file beside `entmax.py` that registers it, and name the file here.
"""

from __future__ import annotations

import importlib

from uncork.nn.losses.specification import (
    LOSSES,
    Family,
    Loss,
    Names,
    Option,
    Parameters,
    register,
)

for _file in (
    "entmax",
    "alpha_relu",
    "normmax",
):
    importlib.import_module(f"{__name__}.{_file}")

__all__ = ["LOSSES", "Family", "Loss", "Names", "Option", "Parameters", "register"]
