"""Launching a kernel again without its arguments being looked over again.

With every launch Triton asks of all arguments which of a kernel's compiled forms they need. For
thirty of them that takes longer than to launch it, and a small problem waits for it. What was found
is kept here by everything it can depend on: types, alignments, numbers, the device.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from uncork.nn._torch import torch

_MOST = 4096  # forms that are kept: sizes that never come again are no use
_forms: dict[tuple[Any, ...], Any] = {}


def launch(kernel: Any, programs: int, arguments: Mapping[str, Any]) -> tuple[Any, list[Any]]:
    """kernel[programs,](**arguments) on the current device. Its compiled form, None under Triton's
    interpreter, and its arguments in order, tensors as their addresses."""
    values = [arguments[name] for name in kernel.arg_names]
    key: list[Any] = [id(kernel), arguments["num_warps"], arguments.get("maxnreg")]
    for place, value in enumerate(values):
        if isinstance(value, torch.Tensor):
            address = value.data_ptr()
            key += (value.dtype, address % 16 == 0)
            values[place] = address
        else:
            key += (type(value), value)  # 1, 1.0 and True are equal
    key.append(torch.cuda.current_device() if torch.cuda.is_initialized() else None)
    form = _forms.get(tuple(key))
    if form is not None:
        form[programs, 1, 1](*values)
        return form, values
    form = kernel[(programs,)](**arguments)
    if form is not None:
        if len(_forms) >= _MOST:
            _forms.clear()
        _forms[tuple(key)] = form
    return form, values


class Repeated:
    """A kernel launched several times in one call, with `begin` changed and nothing else: which its
    compiled form must not depend on. The arguments are kept alive."""

    def __init__(self, kernel: Any, arguments: Mapping[str, Any]) -> None:
        self._kernel = kernel
        self._arguments = arguments
        self._place = kernel.arg_names.index("begin")
        self._form: Any = None
        self._values: list[Any] = []

    def __call__(self, programs: int, begin: int) -> None:
        if self._form is None:
            arguments = {"begin": begin, **self._arguments}
            self._form, self._values = launch(self._kernel, programs, arguments)
        else:
            self._values[self._place] = begin
            self._form[programs, 1, 1](*self._values)
