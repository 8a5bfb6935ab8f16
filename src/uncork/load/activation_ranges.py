"""What an activation can give, by the name that transformers has for it."""

from __future__ import annotations

import math

# Minima are rounded down, past what float32 makes of them.
RANGES: dict[str, tuple[float, float]] = {
    "relu": (0.0, math.inf),
    "relu6": (0.0, 6.0),
    "relu2": (0.0, math.inf),
    "tanh": (-1.0, 1.0),
    "sigmoid": (0.0, 1.0),
    "gelu": (-0.16998, math.inf),  # −0.169971…
    "gelu_python": (-0.16998, math.inf),
    "gelu_new": (-0.17005, math.inf),  # −0.170041…
    "gelu_fast": (-0.17005, math.inf),
    "gelu_pytorch_tanh": (-0.17005, math.inf),
    "hardswish": (-0.37501, math.inf),  # −0.375
    "silu": (-0.27847, math.inf),  # −0.278464…
    "swish": (-0.27847, math.inf),
}
