"""The array library and device that searching runs on: NumPy on the CPU, torch on a GPU.

Screening and deciding only propose; what they propose is certified in float64 afterwards. So the
CPU searches in float32, at twice the speed and half the memory, and the GPU, whose float64 units
are as fast, in float64.
"""

from __future__ import annotations

import contextlib
import functools
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import array_api_compat.numpy as numpy_namespace
import numpy as np
from threadpoolctl import ThreadpoolController

from uncork.auditing.certify.arithmetic import DOUBLE, TENSOR_CORES, Arithmetic
from uncork.auditing.certify.products import Beside, Device
from uncork.auditing.folded import Folded
from uncork.auditing.gpu import gpu_available
from uncork.core.errors import UncorkError
from uncork.core.head import Head

_UPLOAD_BYTES = 256 << 20  # of a weight brought to the GPU in one go
_ONE_BY_ONE = 1024  # the width beyond which a GPU solves systems one at a time
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
_SHORT = 512  # terms up to which writing a sum down takes longer than making it


class Backend(Device):
    """NumPy on `jobs` threads, each with one BLAS thread."""

    name = "cpu"
    xp: Any = numpy_namespace
    chunk_bytes = 64 << 20  # first guesses held at a time
    block_bytes = 16 << 20  # scores made at a time by one thread: within reach of the caches
    cache_bytes = 512 << 10  # inputs that are gone over many times in a row
    solve_bytes = 16 << 20  # working sets held at a time by one thread
    again_bytes = 1 << 30  # points that may be held a second time, in other coordinates

    def __init__(self, jobs: int | None = None, dtype: Any = np.float32) -> None:
        self.jobs = jobs or _cores()
        self.dtype: Any = dtype

    def asarray(self, array: np.ndarray) -> Any:
        """A copy on the device in the search precision."""
        with np.errstate(over="ignore"):
            return np.ascontiguousarray(array, dtype=self.dtype)

    def index(self, array: np.ndarray) -> Any:
        """Whole numbers to index with."""
        return array

    def factor(self, matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """L with L Lᵀ = M for a symmetric positive definite M, and L⁻¹; `LinAlgError` if it is not
        one."""
        lower = np.linalg.cholesky(matrix)
        return lower, np.tril(np.linalg.inv(lower))

    def triangle(self, rows: Any) -> Any:
        """R of rows = QR, in the rows' own type: (n, d) → (min(n, d), d)."""
        return np.linalg.qr(rows, mode="r")

    def matmul(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """A product of matrices that lie here, made where products are made."""
        return self.get(self.put(left) @ self.put(right))

    def hold(self, shape: tuple[int, ...]) -> Any:
        """Memory for the points of a head; a file on disk where they would fill half of it."""
        if int(np.prod(shape)) * np.dtype(self.dtype).itemsize <= physical_memory() // 2:
            return np.empty(shape, dtype=self.dtype)
        with tempfile.TemporaryFile() as file:  # lives as long as the array maps it
            return np.memmap(file, dtype=self.dtype, mode="w+", shape=shape)

    def largest(self, values: Any, count: int) -> Any:
        """Columns of the `count` largest values of each row, in no order: (n, count)."""
        count = min(count, values.shape[1])
        if count == values.shape[1]:
            return np.broadcast_to(np.arange(count), (values.shape[0], count)).copy()
        if count == 0:
            return np.empty((values.shape[0], 0), dtype=np.int64)
        return np.argpartition(values, -count, axis=1)[:, -count:]

    def solve(self, matrices: Any, vectors: Any) -> Any:
        """x with M x = v for symmetric positive definite M (n, m, m), v (n, m); float64 inside."""
        diagonal = np.arange(matrices.shape[1])
        scale = 1 / np.sqrt(np.maximum(matrices[:, diagonal, diagonal], 1e-30).astype(np.float64))
        scaled = matrices * scale[:, :, None] * scale[:, None, :]
        scaled[:, diagonal, diagonal] += 4 * np.finfo(matrices.dtype).eps
        try:
            x = np.linalg.solve(scaled, (vectors * scale)[:, :, None])[:, :, 0] * scale
        except np.linalg.LinAlgError:
            return np.full(vectors.shape, np.nan, dtype=vectors.dtype)
        return x.astype(vectors.dtype)

    @contextlib.contextmanager
    def threads(self, items: int | None = None) -> Iterator[Callable[..., Iterable[Any]]]:
        """`map` over the backend's threads, results in order as they come. `items`: how many
        things there are to do, where that is known; for one, threads are not started."""
        if self.jobs == 1 or items == 1:
            with _blas().limit(limits=1):
                yield lambda work, items: map(_quiet(work), items)
            return
        with _blas().limit(limits=1), ThreadPoolExecutor(self.jobs) as pool:
            try:
                yield lambda work, items: pool.map(_quiet(work), items)
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise


class TorchBackend(Backend):
    """torch tensors in float64 on one device; the head's weights are held there once."""

    inputs = 4096
    rows = 16384
    gather_bytes = 1 << 30
    single = False
    chunk_bytes = 1 << 30
    block_bytes = 2 << 30
    cache_bytes = 1 << 30
    solve_bytes = 8 << 30
    again_bytes = 16 << 30
    panel = 16384
    panel_bytes = 24 << 30
    measured_bytes = 1 << 30

    def __init__(self, device: str = "cuda") -> None:
        import array_api_compat.torch as torch_namespace
        import torch

        super().__init__(jobs=1)
        self.name = device
        self.xp = torch_namespace
        self.torch = torch
        self.dtype = torch.float64
        self._held: tuple[Head, Any] | None = None

    def put(self, array: np.ndarray) -> Any:
        return self.torch.from_numpy(np.array(array, order="C")).to(self.name)

    def get(self, array: Any) -> np.ndarray:
        host: np.ndarray = array.detach().cpu().numpy()
        return host

    def asarray(self, array: np.ndarray) -> Any:
        return self.put(np.asarray(array, dtype=np.float64))

    def index(self, array: np.ndarray) -> Any:
        return self.put(np.asarray(array, dtype=np.int64))

    def arithmetic(self, strict: bool) -> Arithmetic:
        if strict or not self._has_tensor_cores:
            return DOUBLE
        return TENSOR_CORES

    @property
    def _has_tensor_cores(self) -> bool:
        """Whether bfloat16 products are made as `TENSOR_CORES` says. Without a GPU they are made in
        float32, which is better than that."""
        if not self.name.startswith("cuda"):
            return True
        nvidia = self.torch.version.hip is None
        return nvidia and self.torch.cuda.get_device_capability(self.name) >= (8, 0)

    def cast(self, array: Any, dtype: Any) -> Any:
        return array.to(getattr(self.torch, dtype) if isinstance(dtype, str) else dtype)

    def beside(self, points: Any, columns: Any) -> Any:
        width = points.shape[1] + columns.shape[1]
        padding = points.new_zeros((len(points), -width % 16))  # tensor cores work on sixteens
        return self.torch.cat([points, columns, padding], dim=1)

    def product(self, left: Any, right: Any) -> Any:
        if left.dtype != self.torch.bfloat16:
            return left @ right.T
        if not self.name.startswith("cuda"):
            return left.float() @ right.float().T
        return self._whole_sums(self.torch.mm, left, right.T, out_dtype=self.torch.float32)

    def _whole_sums(self, multiply: Any, *factors: Any, **options: Any) -> Any:
        """A product in bfloat16 whose partial sums stay in float32 until the end."""
        matmul = self.torch.backends.cuda.matmul
        reduced = matmul.allow_bf16_reduced_precision_reduction
        matmul.allow_bf16_reduced_precision_reduction = False
        try:
            return multiply(*factors, **options)
        finally:
            matmul.allow_bf16_reduced_precision_reduction = reduced

    def maxima(
        self, left: Any, right: Any, same: bool, beside: Beside | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        # Short sums are made faster than they are written down: in half as many bytes. Rounding
        # keeps the order, so the largest is still the largest, and is rounded up again.
        short = self.name.startswith("cuda") and left.shape[1] <= _SHORT and beside is None
        if short and left.dtype == self.torch.bfloat16:
            scores, lost = self._whole_sums(self.torch.mm, left, right.T), 2.0**-7
        else:
            scores, lost = self.product(left, right), 0.0
        if same:
            scores.fill_diagonal_(-np.inf)
        of_columns = of_rows = scores
        if beside is not None:
            of_columns, of_rows = (scores.addr(*outer) for outer in beside)
        both = self.torch.cat([of_rows.amax(dim=1), of_columns.amax(dim=0)])
        found = self.get(both.double())
        found += lost * np.abs(found)
        return found[: len(left)], found[len(left) :]

    def squares(self, rows: Any) -> Any:
        return (rows * rows).sum(dim=1)

    def hold(self, shape: tuple[int, ...]) -> Any:
        return self.torch.empty(shape, dtype=self.dtype, device=self.name)

    def factor(self, matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        lower, failed = self.torch.linalg.cholesky_ex(self.put(matrix))
        if int(failed):
            raise np.linalg.LinAlgError("not positive definite")
        one = self.torch.eye(len(matrix), dtype=lower.dtype, device=lower.device)
        inverse = self.torch.linalg.solve_triangular(lower, one, upper=False)
        return self.get(lower), self.get(inverse)

    def triangle(self, rows: Any) -> Any:
        return self.torch.linalg.qr(rows, mode="r").R

    def largest(self, values: Any, count: int) -> Any:
        return self.torch.topk(values, min(count, values.shape[1]), dim=1, sorted=False).indices

    def solve(self, matrices: Any, vectors: Any) -> Any:
        if matrices.shape[0] > 1 and matrices.shape[1] > _ONE_BY_ONE:
            # Batched solvers are made for small matrices; a large one fills the device alone.
            pairs = zip(matrices, vectors, strict=True)
            return self.torch.cat([self.solve(m[None], v[None]) for m, v in pairs])
        factor, failed = self.torch.linalg.cholesky_ex(matrices)
        result = self.torch.cholesky_solve(vectors[..., None], factor)[..., 0]
        result[failed > 0] = float("nan")
        return result

    def blocks(self, head: Head | Folded) -> Iterator[tuple[int, Any]]:
        if isinstance(head, Folded):
            for start, block in self.blocks(head.head):
                yield start, head.fold(block, self)
            return
        weight = self._weight(head)
        for start in range(0, head.classes, self.rows):
            yield start, weight[start : start + self.rows].to(self.torch.float64)

    def take(self, head: Head | Folded, classes: np.ndarray) -> Any:
        if isinstance(head, Folded):
            return head.fold(self.take(head.head, classes), self)
        return self._weight(head)[self.index(classes)].to(self.torch.float64)

    def columns(self, head: Head | Folded, features: np.ndarray) -> np.ndarray:
        if isinstance(head, Folded):
            return super().columns(head, features)
        return self.get(self._weight(head)[:, self.index(features)].to(self.torch.float64))

    def largest_weight(self, head: Head) -> float:
        weight = self._weight(head)
        return max(abs(float(weight.max())), abs(float(weight.min())))

    def inverse_root(self, covariance: Any) -> Any | None:
        factor, failed = self.torch.linalg.cholesky_ex(covariance)
        if bool(failed):
            return None
        unit = self.torch.eye(len(factor), dtype=factor.dtype, device=factor.device)
        return self.torch.linalg.solve_triangular(factor, unit, upper=False)

    def _weight(self, head: Head) -> Any:
        """The weight on the GPU in a type as small as stored, where torch has it; brought there
        once, a part at a time: it may be mapped from a file larger than memory."""
        if self._held is None or self._held[0] is not head:
            self._held = None  # make room before the next one comes
            step = max(1, _UPLOAD_BYTES // max(1, head.weight.nbytes // head.classes))
            held = None
            for start in range(0, head.classes, step):
                part = self._stored(head.weight[start : start + step])
                if held is None:
                    shape = (head.classes, head.features)
                    held = self.torch.empty(shape, dtype=part.dtype, device=self.name)
                held[start : start + step].copy_(part)
            self._held = (head, held)
        return self._held[1]

    def _stored(self, rows: np.ndarray) -> Any:
        """Rows as a tensor of their own type, or of float64, here."""
        rows = np.array(rows, order="C")  # torch does not want arrays that cannot be written to
        if rows.dtype.name == "bfloat16":
            return self.torch.from_numpy(rows.view(np.int16)).view(self.torch.bfloat16)
        if rows.dtype.name in ("float16", "float32", "float64", "int8", "uint8"):
            return self.torch.from_numpy(rows)
        return self.torch.from_numpy(rows.astype(np.float64))


@functools.cache
def _blas() -> ThreadpoolController:
    """Made once: finding the libraries takes longer than a small audit."""
    return ThreadpoolController()


def _quiet(work: Callable[[_Item], _Result]) -> Callable[[_Item], _Result]:
    """Work without warnings of overflow: the certifier's bounds refuse what overflowed."""

    def quietly(item: _Item) -> _Result:
        with np.errstate(all="ignore"):  # a thread does not inherit its caller's
            return work(item)

    return quietly


def choose_backend(device: str = "auto", jobs: int | None = None) -> Backend:
    """`cpu`, `cuda`, or `auto`: the GPU where torch sees one."""
    if device not in ("auto", "cpu", "cuda"):
        raise UncorkError(f"device {device!r} is not known: expected auto, cpu or cuda")
    if jobs is not None and jobs < 1:
        raise UncorkError(f"jobs must be at least 1, not {jobs}")
    if device == "cpu":
        return Backend(jobs)
    if gpu_available():
        return TorchBackend()
    if device == "cuda":
        raise UncorkError("--device cuda: torch with a CUDA device is not available here")
    return Backend(jobs)


def physical_memory() -> int:
    """Bytes of memory in this machine; unlimited where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not on this system
        return 1 << 62


def _cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on Linux
        return os.cpu_count() or 1
