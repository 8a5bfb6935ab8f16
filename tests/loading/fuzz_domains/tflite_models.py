"""Random TensorFlow Lite graphs: every operator with a rule, floats and integers, both kernels.

python -m fuzz_domains.tflite_models --count 1000 --seed 0
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from ai_edge_litert.interpreter import Interpreter, OpResolverType

from uncork.core.errors import UncorkError
from uncork.loading import find

from .hill_climbing import Figures, climb, command, outside, starts, turned_round

if str(Path(__file__).parents[1]) not in sys.path:  # as pytest has it
    sys.path.insert(0, str(Path(__file__).parents[1]))

from test_tflite_file import OPERATOR, Builder, dense

_CLASSES = 4
_KERNELS = [  # XNNPACK's, the fast ones, the plain ones
    OpResolverType.AUTO, OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
    OpResolverType.BUILTIN_REF,
]  # fmt: skip
_ELEMENTWISE = [
    OPERATOR.RELU, OPERATOR.RELU6, OPERATOR.RELU_N1_TO_1, OPERATOR.RELU_0_TO_1, OPERATOR.TANH,
    OPERATOR.LOGISTIC, OPERATOR.HARD_SWISH, OPERATOR.ELU, OPERATOR.GELU, OPERATOR.SOFTMAX,
    OPERATOR.LOG_SOFTMAX, OPERATOR.NEG, OPERATOR.ABS, OPERATOR.LEAKY_RELU,
]  # fmt: skip


class _Random:
    """A graph under construction: the last value, its shape, and all before it."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng, self.build = rng, Builder()
        self.shape: tuple[int, ...] = (1, 4, 4, 6) if rng.random() < 0.4 else (1, 6)
        self.first = self.last = self.build.tensor("x", self.shape)
        self.values = [(self.last, self.shape)]

    def new(self, shape: tuple[int, ...] | None = None, **settings: Any) -> int:
        name = f"value {len(self.build.tensors)}"
        return self.build.tensor(name, self.shape if shape is None else shape, **settings)

    def apply(
        self, code: int, given: list[int], shape: tuple[int, ...], options: Any = None, **more: Any
    ) -> None:
        result = self.new(shape)
        self.build.operator(code, given, [result], options, **more)
        self.last, self.shape = result, shape
        self.values.append((result, shape))

    def step(self) -> None:
        rng, fused = self.rng, int(self.rng.integers(0, 4))
        what = str(rng.choice(["function"] * 4 + ["silu", "add", "dense", "mean", "pool", "reshape",
                                                 "integers", "join", "product"]))  # fmt: skip
        if what == "function":
            code = int(rng.choice(_ELEMENTWISE))
            options, more = None, {}
            if code == OPERATOR.SOFTMAX:
                options, more = "SoftmaxOptions", {"beta": float(rng.choice([1.0, 0.5]))}
            elif code == OPERATOR.GELU:
                options, more = "GeluOptions", {"approximate": bool(rng.random() < 0.5)}
            elif code == OPERATOR.LEAKY_RELU:
                options, more = "LeakyReluOptions", {"alpha": 0.2}
            self.apply(code, [self.last], self.shape, options, **more)
        elif what in ("silu", "product"):
            x, shape = self.last, self.shape
            self.apply(OPERATOR.LOGISTIC, [x], shape)
            other = x if what == "silu" else self.last
            pair = [other, self.last] if rng.random() < 0.5 else [self.last, other]
            self.apply(OPERATOR.MUL, pair, shape, "MulOptions", fusedActivationFunction=0)
        elif what == "add":
            self.apply(OPERATOR.ADD, [self.last, self.last], self.shape, "AddOptions",
                       fusedActivationFunction=fused)  # fmt: skip
        elif what == "dense" and len(self.shape) == 2:
            weight = self.build.tensor(
                f"weight {len(self.build.tensors)}",
                values=rng.normal(size=(6, self.shape[1])).astype("f4"),
            )
            result = self.new((1, 6))
            dense(self.build, [self.last, weight, -1], result, fused)
            self.last, self.shape = result, (1, 6)
            self.values.append((result, (1, 6)))
        elif what == "mean" and len(self.shape) == 4:
            axes = self.build.tensor("axes", values=np.array([1, 2], np.int32))
            self.apply(OPERATOR.MEAN, [self.last, axes], (1, self.shape[3]), "ReducerOptions",
                       keepDims=False)  # fmt: skip
        elif what == "pool" and len(self.shape) == 4:
            code = OPERATOR.MAX_POOL_2D if rng.random() < 0.5 else OPERATOR.AVERAGE_POOL_2D
            self.apply(code, [self.last], self.shape, "Pool2DOptions", padding=0, strideW=1,
                       strideH=1, filterWidth=2, filterHeight=2,
                       fusedActivationFunction=fused)  # fmt: skip
        elif what == "reshape" and len(self.shape) == 4:
            flat = (1, int(np.prod(self.shape)))
            target = self.build.tensor("shape", values=np.array(flat, np.int32))
            self.apply(OPERATOR.RESHAPE, [self.last, target], flat)
        elif what == "integers":
            kind = str(rng.choice(["i1", "u1"]))
            least = -128 if kind == "i1" else 0
            whole = self.new(kind=kind, scale=float(10 ** rng.uniform(-3, 0)),
                             zero=int(rng.integers(least, least + 256)))  # fmt: skip
            self.build.operator(OPERATOR.QUANTIZE, [self.last], [whole])
            self.apply(OPERATOR.DEQUANTIZE, [whole], self.shape)
        elif what == "join":
            same = [value for value, shape in self.values if shape == self.shape]
            joined = (*self.shape[:-1], 2 * self.shape[-1])
            self.apply(OPERATOR.CONCATENATION, [self.last, int(rng.choice(same))], joined,
                       "ConcatenationOptions", axis=len(joined) - 1,
                       fusedActivationFunction=0)  # fmt: skip


def _model(rng: np.random.Generator, path: Path) -> tuple[int, int, int]:
    """A graph saved; the tensors it is given, of what arrives at its head, and of its output."""
    graph = _Random(rng)
    for _ in range(int(rng.integers(1, 5))):
        graph.step()
    if len(graph.shape) == 4 and rng.random() < 0.7:
        flat = (1, int(np.prod(graph.shape)))
        target = graph.build.tensor("shape", values=np.array(flat, np.int32))
        graph.apply(OPERATOR.RESHAPE, [graph.last, target], flat)
    hidden, features = graph.last, graph.shape[-1]
    values = rng.normal(size=(_CLASSES, features)).astype("f4")
    head = graph.build.tensor("head", values=values)
    bias = graph.build.tensor("bias", values=rng.normal(size=_CLASSES).astype("f4"))
    shape = (*graph.shape[:-1], _CLASSES)
    result = graph.new(shape)
    graph.build.operator(
        OPERATOR.FULLY_CONNECTED, [hidden, head, bias], [result], "FullyConnectedOptions",
        fusedActivationFunction=int(rng.choice([0, 0, 0, 1])), keepNumDims=len(shape) > 2,
    )  # fmt: skip
    graph.last, graph.shape = result, shape
    after = str(rng.choice(["", "", "softmax", "softmax", "logistic", "log", "neg", "reshape"]))
    codes = {"logistic": OPERATOR.LOGISTIC, "log": OPERATOR.LOG_SOFTMAX, "neg": OPERATOR.NEG}
    if after in codes:
        graph.apply(codes[after], [result], shape)
    elif after == "softmax":
        beta = float(rng.choice([1.0, 2.0, -1.0]))
        graph.apply(OPERATOR.SOFTMAX, [result], shape, "SoftmaxOptions", beta=beta)
    elif after == "reshape":
        flat = (int(np.prod(shape)), 1)
        target = graph.build.tensor("flat", values=np.array(flat, np.int32))
        graph.apply(OPERATOR.RESHAPE, [result, target], flat)
    graph.build.save(path, [graph.first], [graph.last])
    # The same with what arrives at the head as an output: fused kernels keep nothing else.
    graph.build.save(path.with_suffix(".run"), [graph.first], [graph.last, hidden])
    return graph.first, hidden, graph.last


def run(count: int, seed: int) -> Figures:
    figures = Figures()
    with tempfile.TemporaryDirectory() as folder:
        for number in range(count):
            rng = np.random.default_rng([seed, number])
            _try(figures, rng, Path(folder) / "m.tflite", f"model {number} of seed {seed}")
    return figures


def _try(figures: Figures, rng: np.random.Generator, path: Path, name: str) -> None:
    first, hidden, last = _model(rng, path)
    kernels = _KERNELS[int(rng.integers(len(_KERNELS)))]
    runs = path.with_suffix(".run")
    try:
        interpreter = Interpreter(
            model_content=runs.read_bytes(), experimental_op_resolver_type=kernels
        )
        interpreter.allocate_tensors()
    except (RuntimeError, ValueError):  # what the run-time refuses, it never runs
        return
    figures.models += 1
    kinds = " → ".join(op["op_name"] for op in interpreter._get_ops_details())
    try:
        found = find(path, domain="auto")
        doubts = found.contents.choose().doubts
    except UncorkError:
        figures.stopped["refused"] += 1
        return
    figures.doubtful += bool(doubts)
    shape = tuple(interpreter.get_input_details()[0]["shape"])[1:]
    outputs: list[np.ndarray] = []

    def arrive(x: np.ndarray) -> np.ndarray:
        rows = []
        outputs.clear()
        for one in x:
            interpreter.set_tensor(first, one[None])
            interpreter.invoke()
            rows.append(interpreter.get_tensor(hidden).astype(np.float64))
            outputs.append(interpreter.get_tensor(last).astype(np.float64))
        return np.stack(rows).reshape(len(x), -1, found.head.features)

    shown = found.shown_domain
    if shown is not None:
        figures.known += 1
        figures.by[shown.why.partition(" ")[0]] += 1
        rows = climb(arrive, starts(rng, shape), shown.domain, rng, 12)
        figures.inputs += len(rows)
        wrong = outside(rows, shown.domain)
        if len(wrong):
            figures.violations.append(f"{name}: {shown.why}, {shown.domain}: {wrong[0]}: {kinds}")
    else:
        figures.stopped[found.domain_from.partition("head (")[2].partition(" ")[0]] += 1
    if not doubts:
        rows = arrive(rng.normal(size=(16, *shape)).astype(np.float32))
        logits = rows.reshape(-1, rows.shape[-1]) @ found.head.rows(0, _CLASSES).T
        logits = logits + found.head.offsets
        scores = np.stack(outputs)
        if scores.size != logits.size or turned_round(logits, scores.reshape(logits.shape)):
            figures.violations.append(f"{name}: another order after the head: {kinds}")


if __name__ == "__main__":
    command(run)
