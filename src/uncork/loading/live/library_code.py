"""Whether a live torch module does what its library wrote: no hook, no patch, no other class.

A module's class says what it computes only if calling it runs that class's own code. Hooks, a
`forward` put on the instance or on the class, pruning and parametrisation all change that.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_LOOKING_ON = "transformers.utils.output_capturing"
_LIBRARIES = ("torch", "torchvision", "transformers", "timm", "uncork")


def changed(module: Any) -> str | None:
    """What makes a module do other than its class was written to do; None where nothing does."""
    kind = type(module)
    if _hooked(module):
        return "it has hooks, which may change what it gives"
    patched = [key for key in vars(module) if callable(getattr(kind, key, None))]
    if patched:
        return f"its {patched[0]} was replaced"
    if getattr(module, "_compiled_call_impl", None) is not None:
        return "it was compiled, which may change how it rounds"
    if not is_own_class(kind):
        return f"its class {kind.__module__}.{kind.__qualname__} is not a library's own"
    for name in ("forward", "__call__", "__getattr__", "__iter__"):
        if not _is_own_code(kind, name):
            return f"{name} of its class was replaced"
    return None


def hooked_everywhere() -> str | None:
    """Hooks that run on every module; None where there are none."""
    everywhere = sys.modules["torch.nn.modules.module"]
    if any(getattr(everywhere, f"_global{hooks}", None) for hooks in _HOOKS):
        return "hooks run on every torch module, which may change what they give"
    return None


def is_compiled(module: Any) -> bool:
    """Whether this is what torch.compile puts around a model, with nothing hooked to it."""
    frame = sys.modules.get("torch._dynamo.eval_frame")
    own = frame is not None and type(module) is getattr(frame, "OptimizedModule", None)
    return own and not _hooked(module)


def _hooked(module: Any) -> bool:
    """Whether a hook may change what goes in or out: transformers' own only look on."""
    hooks = (hook for name in _HOOKS for hook in (getattr(module, name, None) or {}).values())
    return any(
        getattr(hook, "__module__", "") != _LOOKING_ON or not _in_library(hook.__code__.co_filename)
        for hook in hooks
    )


def is_own_class(kind: type) -> bool:
    """Whether a library's module holds this very class under its name."""
    home = sys.modules.get(kind.__module__)
    known = kind.__module__.partition(".")[0] in _LIBRARIES
    return known and getattr(home, kind.__qualname__, None) is kind


def _is_own_code(kind: type, name: str) -> bool:
    """Whether a method's code stands in a library's files, that of its decorators too."""
    method = getattr(kind, name, None)
    while method is not None:
        code = getattr(method, "__code__", None)
        if code is None or not _in_library(code.co_filename):
            return False
        method = getattr(method, "__wrapped__", None)
    return True


def _in_library(file: str) -> bool:
    path = Path(file)
    for library in _LIBRARIES:
        home = getattr(sys.modules.get(library), "__file__", None)
        if home is not None and path.is_relative_to(Path(home).parent):
            return True
    return False
