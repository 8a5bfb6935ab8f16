"""How kernels are launched: on the device of their tensors, by compiled forms found before.

Triton inspects all arguments of every launch to find the compiled form they need. For thirty
arguments that takes longer than the launch itself, and a small problem waits for it. :func:`launch`
keeps what was found, by everything it can depend on: types, alignments, numbers, the device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, wraps
from operator import itemgetter
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

from uncork.nn._torch import torch

Tensor = torch.Tensor
Others = ParamSpec("Others")
Made = TypeVar("Made")

_MOST = 4096  # compiled forms kept: sizes may change with every call and never return
_forms: dict[tuple[Any, ...], Any] = {}
_sites: dict[tuple[Any, ...], _Site] = {}  # as many as launches are written, by types


def on_its_device(
    launcher: Callable[Concatenate[Tensor, Others], Made],
) -> Callable[Concatenate[Tensor, Others], Made]:
    """Run a function that launches kernels on the device of its first tensor.

    Triton launches on the current device, which in a process with several GPUs may not be the
    tensors' own. torch's operators take care of that themselves.
    """

    @wraps(launcher)
    def launched(first: Tensor, /, *others: Others.args, **named: Others.kwargs) -> Made:
        device = first.device
        if device.type != "cuda" or device.index == torch.cuda.current_device():
            return launcher(first, *others, **named)
        with torch.cuda.device(device):
            return launcher(first, *others, **named)

    return launched


class _Site(NamedTuple):
    """What the names and types of a launch's arguments tell, whatever their values."""

    kernel: Any  #: kept alive, so that no other has its id
    tensors: list[int]  #: which of the arguments are tensors
    in_order: Callable[[list[Any]], tuple[Any, ...]]  #: the arguments as the kernel names them


def launch(kernel: Any, programs: int, arguments: Mapping[str, Any]) -> tuple[Any, list[Any]]:
    """kernel[programs,](**arguments) on the current device. Returns the compiled form (None under
    Triton's interpreter) and the arguments in order, tensors as their addresses."""
    values = list(arguments.values())
    call = (id(kernel), *arguments, *map(type, values))  # types: 1, 1.0 and True are equal
    site = _sites.get(call)
    if site is None:
        site = _sites[call] = _site(kernel, arguments)
    addresses = [values[place].data_ptr() for place in site.tensors]
    for place, address in zip(site.tensors, addresses, strict=True):
        values[place] = (values[place].dtype, address % 16 == 0)
    key = (call, torch.cuda.current_device() if torch.cuda.is_initialized() else None, *values)
    for place, address in zip(site.tensors, addresses, strict=True):
        values[place] = address
    ordered = site.in_order(values)
    form = _forms.get(key)
    if form is not None:
        form[programs, 1, 1](*ordered)
        return form, list(ordered)
    form = kernel[(programs,)](**arguments)
    if form is not None:
        if len(_forms) >= _MOST:
            _forms.clear()
        _forms[key] = form
    return form, list(ordered)


def _site(kernel: Any, arguments: Mapping[str, Any]) -> _Site:
    names = list(arguments)
    places = [names.index(name) for name in kernel.arg_names]
    return _Site(
        kernel,
        [place for place, value in enumerate(arguments.values()) if isinstance(value, Tensor)],
        itemgetter(*places) if len(places) > 1 else lambda values: (values[places[0]],),
    )


class Repeated:
    """A kernel launched several times in one call, with nothing but `begin` changed, on which its
    compiled form must not depend. The arguments are kept alive."""

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


# triton.cdiv and triton.next_power_of_2 do the same, and take ten times as long.


def ceiling(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)


def power_of_two(n: int) -> int:
    """The smallest power of two that is at least n."""
    return 1 << max(0, n - 1).bit_length()


@cache
def multiprocessors(device: torch.device) -> int:
    """Multiprocessors of a GPU (under the interpreter, 2)."""
    if device.type != "cuda":
        return 2
    count: int = torch.cuda.get_device_properties(device).multi_processor_count
    return count


def as_rows(z: Tensor) -> Tensor:
    """z (..., n) as (rows, n), each row contiguous; a view where the strides allow it."""
    rows = z if z.dim() == 2 else z.reshape(-1, z.shape[-1])
    return rows if rows.stride(1) == 1 or rows.shape[1] == 1 else rows.contiguous()


def alignment(source: Tensor, out: Tensor) -> int:
    """Entries in 16 bytes, if every row of `out` begins where its row of `source` does modulo 16
    bytes; otherwise 1."""
    entries = 16 // min(source.element_size(), out.element_size())
    aligned = (
        (source.stride(0) - out.stride(0)) % entries == 0
        and source.data_ptr() % 16 == 0
        and out.data_ptr() % 16 == 0
    )
    return entries if aligned else 1
