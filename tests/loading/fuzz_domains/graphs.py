"""Random ONNX graphs that end in a head: a grammar over every op with a rule.

Shapes are known here, as they will be when the graph is run; the graph itself may leave them open.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSETS = (9, 11, 12, 13, 15, 17, 18, 20, 21, 23)
FLOATS = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16,
          "float64": TensorProto.DOUBLE}  # fmt: skip
WHOLE = {"uint8": TensorProto.UINT8, "int8": TensorProto.INT8, "int32": TensorProto.INT32,
         "int64": TensorProto.INT64, "uint16": TensorProto.UINT16,
         "int16": TensorProto.INT16}  # fmt: skip
NUMBERS = (0.0, 1.0, -1.0, 0.5, 2.0, 3.0, 6.0, -2.0, 0.1, 1e-3, 100.0, 0.7, 1e-5, -0.3)
MICROSOFT = "com.microsoft"


@dataclass(frozen=True)
class V:
    """A value of the graph: its name, element type and shape."""

    name: str
    kind: str
    shape: tuple[int, ...]

    @property
    def rank(self) -> int:
        return len(self.shape)


class NotHere(Exception):
    """This op does not fit this value."""


@dataclass
class Graph:
    """A finished graph: the model, and which output is the prediction."""

    model: Any
    shape: tuple[int, ...]  # of the input x, the batch first
    kind: str
    ops: set[str] = field(default_factory=set)
    batch_free: bool = True


class Grammar:
    """One graph in the making."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.opset = int(rng.choice(OPSETS))
        self.kind = str(rng.choice(["float32"] * 7 + ["float16", "float64"]))
        self.nodes: list[Any] = []
        self.constants: dict[str, np.ndarray] = {}
        self.overridable: set[str] = set()
        self.functions: list[Any] = []
        self.count = 0
        self.ops: set[str] = set()
        self.pool: list[V] = []

    # Small things

    def name(self) -> str:
        self.count += 1
        return f"v{self.count}"

    def chance(self, p: float) -> bool:
        return bool(self.rng.random() < p)

    def pick(self, *options: Any) -> Any:
        return options[int(self.rng.integers(len(options)))]

    def node(self, op: str, inputs: list[str], outputs: int = 1, domain: str = "",
             **attributes: Any) -> list[str]:  # fmt: skip
        names = [self.name() for _ in range(outputs)]
        self.nodes.append(helper.make_node(op, inputs, names, name=f"n_{names[0]}", domain=domain,
                                           **attributes))  # fmt: skip
        self.ops.add(op)
        return names

    def constant(self, values: Any, plain: bool = False) -> str:
        """A constant as exporters write it: stored, a node, or through a few shape ops."""
        values, name = np.asarray(values), self.name()
        way = 0 if plain else int(self.rng.integers(8))
        if way == 0 and values.dtype.kind == "f" and not plain and self.chance(0.03):
            self.overridable.add(name)
        if way == 1:
            self.nodes.append(helper.make_node("Constant", [], [name],
                                               value=numpy_helper.from_array(values)))  # fmt: skip
            return name
        if way == 2 and values.ndim and values.shape[0] == 1 and self.opset < 13:
            self.constants[name] = values[0]
            return self.node("Unsqueeze", [name], axes=[0])[0]
        if way == 3 and values.ndim:
            self.constants[name] = values.reshape(-1)
            shape = self.constant(np.array(values.shape, dtype=np.int64), plain=True)
            return self.node("Reshape", [name, shape])[0]
        if way == 4 and values.ndim > 1:
            self.constants[name] = values.T.copy()
            return self.node("Transpose", [name], perm=list(range(values.ndim))[::-1])[0]
        if way == 5 and values.ndim and 1 in values.shape and self.opset >= 13:
            axes = [k for k, n in enumerate(values.shape) if n == 1]
            self.constants[name] = np.squeeze(values)
            return self.node("Unsqueeze", [name, self.axes(axes)])[0]
        self.constants[name] = values
        return name

    def axes(self, axes: Any) -> str:
        return self.constant(np.asarray(axes, dtype=np.int64), plain=True)

    def number(self, kind: str, value: float | None = None) -> str:
        value = float(self.rng.choice(NUMBERS)) if value is None else value
        shape = () if self.chance(0.7) else (1,)
        return self.constant(np.full(shape, value, dtype=kind))

    def against(self, v: V, positive: bool = False) -> V:
        """A constant to be set against a value: some axes of its own, some of length one."""
        shape = [n if self.chance(0.5) else 1 for n in v.shape]
        if self.chance(0.4):
            shape = shape[int(self.rng.integers(len(shape) + 1)) :]
        values = self.rng.normal(size=shape) * float(self.pick(1, 1, 5, 0.1))
        values = np.abs(values) + 0.01 if positive else values
        return V(self.constant(values.astype(v.kind)), v.kind, tuple(shape))

    def some(self, kind: str | None = None, whole: bool = False) -> V:
        """A value of the pool, the later ones likelier."""
        every = [v for v in self.pool if (v.kind in FLOATS) != whole and kind in (None, v.kind)]
        if not every:
            raise NotHere
        k = len(every) - 1 - min(int(self.rng.geometric(0.5)) - 1, len(every) - 1)
        return every[k]

    def add(self, name: str, kind: str, shape: Any) -> V:
        shape = tuple(int(n) for n in shape)
        if np.prod(shape, dtype=np.int64) > 4000 or 0 in shape or len(shape) > 6:
            raise NotHere
        made = V(name, kind, shape)
        self.pool.append(made)
        return made

    # The graph

    def build(self) -> Graph:
        shape, open_ = self._input()
        self.pool.append(V("x", self.kind, shape))
        steps = int(self.rng.integers(1, 8))
        tries = 0
        while steps and tries < 60:
            tries += 1
            nodes, constants = len(self.nodes), set(self.constants)
            try:
                self.pick(*STEPS)(self)
                steps -= 1
            except (NotHere, IndexError):  # an op that needs an axis, of a value without one
                del self.nodes[nodes:]
                for name in set(self.constants) - constants:
                    del self.constants[name]
                    self.overridable.discard(name)
        out = self._head()
        out = self._tail(*out)
        return self._finish(shape, open_, out)

    def _input(self) -> tuple[tuple[int, ...], list[Any]]:
        rank = int(self.rng.integers(2, 5))
        batch = int(self.pick(1, 4, 4, 5, 8))
        shape = (batch, *(int(n) for n in self.rng.integers(1, 7, size=rank - 1)))
        open_ = [f"d{k}" if self.chance(0.7 if k == 0 else 0.25) else n
                 for k, n in enumerate(shape)]  # fmt: skip
        return shape, open_

    def _head(self) -> tuple[V, int]:
        """A head on some value; the logits, and their class axis."""
        self.pool = [value for value in self.pool if value.rank]
        v = self.some()
        kind, classes = v.kind, int(self.pick(3, 4, 5, 8))
        heads = ["matmul"] * 4
        heads += ["gemm"] * (v.rank == 2) + ["left"] * (v.rank >= 2) + ["conv"] * (v.rank >= 3)
        heads += ["integer", "dynamic", "qlinear", "qgemm"] * (kind == "float32")
        heads += ["steps"] * any(p.kind in ("uint8", "int8") for p in self.pool)
        how = str(self.rng.choice(heads))
        normal = lambda *s: self.rng.normal(size=s).astype(kind)  # noqa: E731
        if how == "gemm":
            turned = self.chance(0.5)
            weight = normal(classes, v.shape[-1])
            inputs = [v.name, self.constant(weight if turned else weight.T.copy())]
            if self.chance(0.7):
                inputs.append(self.constant(normal(*self.pick((classes,), (1, classes)))))
            z = self.node("Gemm", inputs, transB=int(turned))[0]
            return V(z, kind, (v.shape[0], classes)), -1
        if how == "conv":
            weight = normal(classes, v.shape[1], *[1] * (v.rank - 2))
            z = self.node("Conv", [v.name, self.constant(weight)])[0]
            return V(z, kind, (v.shape[0], classes, *v.shape[2:])), 1 - v.rank
        if how == "left":
            weight = normal(classes, v.shape[-2])
            z = self.node("MatMul", [self.constant(weight), v.name])[0]
            return V(z, kind, (*v.shape[:-2], classes, v.shape[-1])), -2
        if how in ("integer", "dynamic", "qlinear", "qgemm", "steps") and self.opset >= 11:
            made = self._quantised_head(v, classes, how)
            if made is not None:
                return made
        weight = normal(v.shape[-1], classes)
        z = self.node("MatMul", [v.name, self.constant(weight)])[0]
        made_ = V(z, kind, (*v.shape[:-1], classes))
        if self.chance(0.6):
            bias = normal(*self.pick((classes,), (1, classes), (1,), (classes, 1)))
            try:
                np.broadcast_shapes(bias.shape, made_.shape)
            except ValueError:
                return made_, -1
            added = np.broadcast_shapes(bias.shape, made_.shape)
            pair = [z, self.constant(bias)]
            z = self.node("Add", pair if self.chance(0.5) else pair[::-1])[0]
            made_ = V(z, kind, added)
        return made_, -1

    def _quantised_head(self, v: V, classes: int, how: str) -> tuple[V, int] | None:
        weight = self.rng.integers(-128, 128, size=(v.shape[-1], classes)).astype(np.int8)
        scale = np.float32(self.pick(0.01, 0.1, 1.0))
        zero = np.int8(self.pick(0, 3, -5))
        shape = (*v.shape[:-1], classes)
        stored = [self.constant(weight, plain=True), self.constant(zero, plain=True)]
        if how == "dynamic":
            q, s, z = self.node("DynamicQuantizeLinear", [v.name], 3)
            y = self.node("MatMulInteger", [q, stored[0], z, stored[1]])[0]
            y = self.node("Cast", [y], to=TensorProto.FLOAT)[0]
            both = self.node("Mul", [s, self.constant(scale, plain=True)])[0]
            y = self.node("Mul", [y, both])[0]
            if self.chance(0.5):
                bias = self.rng.normal(size=classes).astype(np.float32)
                y = self.node("Add", [y, self.constant(bias)])[0]
            return V(y, "float32", shape), -1
        a_zero = np.uint8(self.pick(0, 3, 128))
        a_scale = np.float32(self.pick(0.01, 0.1, 1.0))
        names = [self.constant(a_scale, plain=True), self.constant(a_zero, plain=True)]
        if how == "steps":
            q_value = self.some(whole=True)
            if q_value.kind not in ("uint8", "int8") or not q_value.rank:
                return None
            weight = self.rng.integers(-128, 128, size=(q_value.shape[-1], classes)).astype(np.int8)
            q, shape = q_value.name, (*q_value.shape[:-1], classes)
            point = np.asarray(self.pick(0, 3), dtype=q_value.kind)
            y = self.node("MatMulInteger", [q, self.constant(weight, plain=True),
                                            self.constant(point, plain=True),
                                            stored[1]])[0]  # fmt: skip
        else:
            q = self.node("QuantizeLinear", [v.name, *names])[0]
            if how == "integer":
                y = self.node("MatMulInteger", [q, stored[0], names[1], stored[1]])[0]
            elif how == "qlinear":
                other = self.constant(np.float32(self.pick(0.01, 0.1, 1.0)), plain=True)
                out = [self.constant(np.float32(50.0), plain=True),
                       self.constant(np.uint8(128), plain=True)]  # fmt: skip
                y = self.node("QLinearMatMul", [q, other, names[1], stored[0],
                                                self.constant(scale, plain=True), stored[1],
                                                *out])[0]  # fmt: skip
                y = self.node("DequantizeLinear", [y, *out])[0]
                return V(y, "float32", shape), -1
            else:
                if v.rank != 2:
                    return None
                bias = self.rng.integers(-5000, 5000, size=classes).astype(np.int32)
                y = self.node("QGemm", [q, *names, stored[0], self.constant(scale, plain=True),
                                        stored[1], self.constant(bias, plain=True)],
                              domain=MICROSOFT)[0]  # fmt: skip
                return V(y, "float32", shape), -1
        y = self.node("Cast", [y], to=TensorProto.FLOAT)[0]
        if self.chance(0.5):
            y = self.node("Mul", [y, self.constant(a_scale * scale, plain=True)])[0]
        return V(y, "float32", shape), -1

    def _tail(self, z: V, axis: int) -> V:
        """Steps after the head: most keep the order of the classes, some do not."""
        for _ in range(int(self.rng.integers(0, 4))):
            z, axis = self._after(z, axis)
        if self.chance(0.12):
            self._picked(z, axis)
        return z

    def _after(self, z: V, axis: int) -> tuple[V, int]:
        kind = z.kind

        def same(op: str, *more: str, **at: Any) -> V:
            return V(self.node(op, [z.name, *more], **at)[0], kind, z.shape)

        how = self.pick("softmax", "other softmax", "scale", "negative", "shift", "one minus",
                        "exp",
                        "sigmoid", "tanh", "neg", "square", "gate", "max minus", "over sum", "move",
                        "logistic", "spelled", "identity", "relu", "vector", "log",
                        "cast")  # fmt: skip
        if how == "softmax":
            return same(self.pick("Softmax", "LogSoftmax"), axis=axis if self.opset >= 13 else (
                axis + z.rank)), axis  # fmt: skip
        if how == "other softmax":
            other = int(self.rng.integers(-z.rank, 0))
            return same("Softmax", axis=other if self.opset >= 13 else other + z.rank), axis
        if how in ("scale", "negative"):
            sign = 1 if how == "scale" else -1
            return same(self.pick("Mul", "Div"), self.number(kind, sign * 0.5)), axis
        if how == "shift":
            return same(self.pick("Add", "Sub"), self.number(kind)), axis
        if how == "one minus":
            return V(self.node("Sub", [self.number(kind, 1.0), z.name])[0], kind, z.shape), axis
        if how in ("exp", "sigmoid", "tanh", "neg", "identity", "relu"):
            return same({"exp": "Exp", "sigmoid": "Sigmoid", "tanh": "Tanh", "neg": "Neg",
                         "identity": "Identity", "relu": "Relu"}[how]), axis  # fmt: skip
        if how == "log":
            return same("Log"), axis
        if how == "square":
            return same("Mul", z.name), axis
        if how == "cast":
            return same("Cast", to=FLOATS[kind]), axis
        if how == "gate":
            return same("Mul", self.node("Sigmoid", [z.name])[0]), axis
        if how == "vector":
            return same(self.pick("Mul", "Add"), self.against(z).name), axis
        reduce = {"axes": [axis + z.rank], "keepdims": 1}
        extra: list[str] = []
        if how == "logistic":
            e = self.node("Exp", [z.name])[0]
            e = self.node("Add", [e, self.number(kind, 1.0)])[0]
            return V(self.node(self.pick("Reciprocal"), [e])[0], kind, z.shape), axis
        if how in ("max minus", "spelled"):
            if self.opset >= 18:
                extra, reduce = [self.axes([axis])], {"keepdims": 1}
            m = self.node("ReduceMax", [z.name, *extra], **reduce)[0]
            if how == "max minus":
                pair = [m, z.name] if self.chance(0.5) else [z.name, m]
                return V(self.node("Sub", pair)[0], kind, z.shape), axis
            e = self.node("Exp", [self.node("Sub", [z.name, m])[0]])[0]
            total = self._summed(e, axis, z.rank)
            return V(self.node("Div", [e, total])[0], kind, z.shape), axis
        if how == "over sum":
            return V(self.node("Div", [z.name, self._summed(z.name, axis, z.rank)])[0], kind,
                     z.shape), axis  # fmt: skip
        perm = [int(k) for k in self.rng.permutation(z.rank)]
        made = self.node("Transpose", [z.name], perm=perm)[0]
        shape = tuple(z.shape[k] for k in perm)
        return V(made, kind, shape), perm.index(axis + z.rank) - z.rank

    def _summed(self, name: str, axis: int, rank: int) -> str:
        if self.opset >= 13:
            return self.node("ReduceSum", [name, self.axes([axis])], keepdims=1)[0]
        return self.node("ReduceSum", [name], axes=[axis + rank], keepdims=1)[0]

    def _picked(self, z: V, axis: int) -> None:
        """A second output: the class itself."""
        op = self.pick("ArgMax", "ArgMax", "ArgMin")
        made = self.node(op, [z.name], axis=axis if self.opset >= 11 else axis + z.rank)[0]
        self.picked = made

    def _finish(self, shape: tuple[int, ...], open_: list[Any], out: V) -> Graph:
        inputs = [helper.make_tensor_value_info("x", FLOATS[self.kind], open_)]
        for name in self.overridable:
            values = self.constants[name]
            inputs.append(helper.make_tensor_value_info(name, FLOATS[values.dtype.name],
                                                        values.shape))  # fmt: skip
        graph = helper.make_graph(
            self.nodes, "g", inputs, [onnx.ValueInfoProto(name=out.name)],
            [numpy_helper.from_array(v, k) for k, v in self.constants.items()],
        )  # fmt: skip
        imports = [helper.make_opsetid("", self.opset), helper.make_opsetid(MICROSOFT, 1)]
        if self.functions:
            imports.append(helper.make_opsetid("mine", 1))
        model = helper.make_model(graph, opset_imports=imports, ir_version=9,
                                  functions=self.functions)  # fmt: skip
        return Graph(model, shape, self.kind, self.ops)


# Steps before the head: each takes values of the pool and adds one.


def unary(g: Grammar) -> None:
    v = g.some()
    op = g.pick("Relu", "Sigmoid", "Tanh", "Softplus", "Abs", "Neg", "Erf", "Softsign", "Exp",
                "Log",
                "Sqrt", "Reciprocal", "Atan")  # fmt: skip
    g.add(g.node(op, [v.name])[0], v.kind, v.shape)


def bent(g: Grammar) -> None:
    v = g.some()
    op = g.pick("LeakyRelu", "Elu", "Celu", "ThresholdedRelu", "Selu", "HardSigmoid", "HardSwish",
                "Mish")  # fmt: skip
    least = {"Celu": 12, "ThresholdedRelu": 10, "HardSwish": 14, "Mish": 18}.get(op, 6)
    if g.opset < least or (op == "Celu" and v.kind != "float32"):
        raise NotHere
    at: dict[str, float] = {}
    if op in ("LeakyRelu", "Elu", "Celu", "ThresholdedRelu") and g.chance(0.7):
        at["alpha"] = float(g.pick(0.1, 1.0, 2.0, 0.5))
    if op == "HardSigmoid" and g.chance(0.5):
        at = {"alpha": float(g.pick(0.1, 0.3, -0.2)), "beta": float(g.pick(0.0, 0.5, 0.9))}
    if op == "Selu" and g.chance(0.3):
        at = {"alpha": 1.2, "gamma": float(g.pick(0.9, 1.1))}
    g.add(g.node(op, [v.name], **at)[0], v.kind, v.shape)


def clip(g: Grammar) -> None:
    v = g.some()
    low, high = sorted(float(g.pick(*NUMBERS, -30.0, 30.0)) for _ in range(2))
    if g.opset < 11:
        at = {k: n for k, n in (("min", low), ("max", high)) if g.chance(0.7)}
        g.add(g.node("Clip", [v.name], **at)[0], v.kind, v.shape)
        return
    first = g.constant(np.asarray(low, dtype=v.kind)) if g.chance(0.8) else ""
    second = [g.constant(np.asarray(high, dtype=v.kind))] if g.chance(0.8) else []
    g.add(g.node("Clip", [v.name, first, *second])[0], v.kind, v.shape)


def prelu(g: Grammar) -> None:
    v = g.some()
    slope = g.against(v)
    g.add(g.node("PRelu", [v.name, slope.name])[0], v.kind, v.shape)


def power(g: Grammar) -> None:
    v = g.some()
    exponent = float(g.pick(1, 2, 3, 0.5, -0.5, 1.5))
    if g.opset < 12 and v.kind == "float16":
        raise NotHere
    g.add(g.node("Pow", [v.name, g.constant(np.asarray(exponent, dtype=v.kind))])[0], v.kind,
          v.shape)  # fmt: skip


def with_constant(g: Grammar) -> None:
    v = g.some()
    c = V(g.number(v.kind), v.kind, ()) if g.chance(0.4) else g.against(v)
    op = g.pick("Add", "Sub", "Mul", "Div", "Max", "Min", "Sum")
    pair = [v.name, c.name] if g.chance(0.6) else [c.name, v.name]
    if op in ("Max", "Min") and v.kind == "float16" and g.opset < 12:
        raise NotHere
    shape = np.broadcast_shapes(v.shape, c.shape)
    g.add(g.node(op, pair)[0], v.kind, shape)


def with_other(g: Grammar) -> None:
    a = g.some()
    b = g.some(a.kind)
    op = g.pick("Add", "Sub", "Mul", "Mul", "Div", "Max", "Min", "Sum", "Where")
    try:
        shape = np.broadcast_shapes(a.shape, b.shape)
    except ValueError:
        raise NotHere from None
    if op == "Where":
        mask = g.rng.random(size=shape[-1:]) < 0.5
        name = g.node("Where", [g.constant(mask, plain=True), a.name, b.name])[0]
    elif op == "Sum" and g.chance(0.5):
        name = g.node("Sum", [a.name, b.name, a.name])[0]
    else:
        name = g.node(op, [a.name, b.name])[0]
    g.add(name, a.kind, shape)


def activation(g: Grammar) -> None:
    """SiLU, GELU and their like, spelled out or as ops of onnxruntime."""
    v = g.some()
    how = g.pick("silu", "quick", "gelu", "tanh gelu", "hard", "mish", "Gelu", "com")
    n = lambda x: g.number(v.kind, x)  # noqa: E731
    if how == "com":
        op = g.pick("Gelu", "FastGelu", "QuickGelu", "BiasGelu")
        if v.kind != "float32":
            raise NotHere
        inputs = [v.name]
        if op == "BiasGelu" or (op == "FastGelu" and g.chance(0.4)):
            inputs.append(g.constant(g.rng.normal(size=v.shape[-1]).astype(v.kind), plain=True))
        at = {"alpha": 1.5} if op == "QuickGelu" and g.chance(0.4) else {}
        g.add(g.node(op, inputs, domain=MICROSOFT, **at)[0], v.kind, v.shape)
        return
    if how == "Gelu":
        if g.opset < 20:
            raise NotHere
        at2 = {"approximate": g.pick("tanh", "none")} if g.chance(0.7) else {}
        g.add(g.node("Gelu", [v.name], **at2)[0], v.kind, v.shape)
        return
    if how in ("silu", "quick"):
        inner = v.name if how == "silu" else g.node("Mul", [v.name, n(1.702)])[0]
        made = g.node("Mul", [v.name, g.node("Sigmoid", [inner])[0]])[0]
    elif how == "gelu":
        e = g.node("Erf", [g.node("Div", [v.name, n(2**0.5)])[0]])[0]
        e = g.node("Add", [e, n(1.0)])[0]
        made = g.node("Mul", [g.node("Mul", [v.name, e])[0], n(0.5)])[0]
    elif how == "tanh gelu":
        p = g.node("Mul", [g.node("Pow", [v.name, n(3.0)])[0], n(0.044715)])[0]
        t = g.node("Tanh", [g.node("Mul", [g.node("Add", [v.name, p])[0], n(0.7978845608)])[0]])[0]
        t = g.node("Add", [t, n(1.0)])[0]
        made = g.node("Mul", [g.node("Mul", [v.name, t])[0], n(0.5)])[0]
    elif how == "hard":
        if g.opset < 11:
            raise NotHere
        a = g.node("Add", [v.name, n(3.0)])[0]
        bounds = [g.constant(np.asarray(k, dtype=v.kind)) for k in (0.0, 6.0)]
        c = g.node("Clip", [a, *bounds])[0]
        made = g.node("Div", [g.node("Mul", [v.name, c])[0], n(6.0)])[0]
    else:
        t = g.node("Tanh", [g.node("Softplus", [v.name])[0]])[0]
        made = g.node("Mul", [v.name, t])[0]
    g.add(made, v.kind, v.shape)


def cast(g: Grammar) -> None:
    v = g.pick(*g.pool)
    target = str(g.pick("float32", "float16", "float64", "int8", "uint8", "int32", "int64"))
    number = {**FLOATS, **WHOLE}[target]
    g.add(g.node("Cast", [v.name], to=number)[0], target, v.shape)


def quantise(g: Grammar) -> None:
    v = g.some("float32")
    kind = str(g.pick("uint8", "int8"))
    per_axis = v.rank > 1 and g.opset >= 13 and g.chance(0.4)
    axis = int(g.rng.integers(v.rank)) if per_axis else 0
    count = (v.shape[axis],) if per_axis else ()
    scale = (np.abs(g.rng.normal(size=count)) + 0.02).astype(np.float32)
    zero = g.rng.integers(0, 100, size=count).astype(kind)
    if g.opset < 10:
        raise NotHere
    at: dict[str, Any] = {"axis": axis} if per_axis else {}
    inputs = [v.name, g.constant(scale, plain=True)]
    if g.chance(0.75):
        inputs.append(g.constant(zero, plain=True))
    elif g.opset >= 21 and g.chance(0.7):
        at["output_dtype"] = WHOLE[kind]
    else:
        kind = "uint8"
    q = g.add(g.node("QuantizeLinear", inputs, **at)[0], kind, v.shape)
    if g.chance(0.7):
        at.pop("output_dtype", None)
        inputs = [q.name, *inputs[1:]]
        if g.chance(0.3):
            inputs = inputs[:2]
        if g.chance(0.2):
            inputs[1] = g.constant(scale * np.float32(0.5), plain=True)
        g.add(g.node("DequantizeLinear", inputs, **at)[0], "float32", v.shape)


def dequantise(g: Grammar) -> None:
    v = g.some(whole=True)
    if v.kind not in ("uint8", "int8") or g.opset < 10:
        raise NotHere
    scale = g.constant(np.float32(g.pick(0.1, 1.0, 0.037)), plain=True)
    inputs = [v.name, scale]
    if g.chance(0.5):
        inputs.append(g.constant(np.asarray(g.pick(0, 5), dtype=v.kind), plain=True))
    g.add(g.node("DequantizeLinear", inputs)[0], "float32", v.shape)


def dynamic(g: Grammar) -> None:
    v = g.some("float32")
    if g.opset < 11:
        raise NotHere
    q, s, z = g.node("DynamicQuantizeLinear", [v.name], 3)
    g.add(q, "uint8", v.shape)
    if g.chance(0.5):
        g.add(g.node("DequantizeLinear", [q, s, z])[0], "float32", v.shape)


def softmax(g: Grammar) -> None:
    v = g.some()
    axis = int(g.rng.integers(v.rank)) if v.rank else 0
    if not v.rank:
        raise NotHere
    g.add(g.node(g.pick("Softmax", "Softmax", "Hardmax"), [v.name], axis=axis)[0], v.kind, v.shape)


def transpose(g: Grammar) -> None:
    v = g.pick(*g.pool)
    if not v.rank:
        raise NotHere
    perm = [int(k) for k in g.rng.permutation(v.rank)]
    at = {"perm": perm} if g.chance(0.85) else {}
    perm = perm if at else list(range(v.rank))[::-1]
    g.add(g.node("Transpose", [v.name], **at)[0], v.kind, [v.shape[k] for k in perm])


def reshape(g: Grammar) -> None:
    v = g.pick(*g.pool)
    total = int(np.prod(v.shape, dtype=np.int64))
    if g.chance(0.2) and v.rank:
        axis = int(g.rng.integers(v.rank + 1))
        shape = (int(np.prod(v.shape[:axis], dtype=np.int64)),
                 int(np.prod(v.shape[axis:], dtype=np.int64)))  # fmt: skip
        g.add(g.node("Flatten", [v.name], axis=axis)[0], v.kind, shape)
        return
    shape_: list[int] = []
    rest = total
    for _ in range(int(g.rng.integers(1, 4))):
        factors = [n for n in range(1, rest + 1) if rest % n == 0]
        shape_.append(int(g.rng.choice(factors)))
        rest //= shape_[-1]
    shape_.append(rest)
    if g.chance(0.5):
        g.rng.shuffle(shape_)
    wanted: list[Any] = list(shape_)
    for k in range(min(len(wanted), v.rank)):
        if wanted[k] == v.shape[k] and g.chance(0.3):
            wanted[k] = 0
    if g.chance(0.5):
        k = int(g.rng.integers(len(wanted)))
        wanted[k] = -1
    if g.chance(0.2) and v.rank:  # through the value's own shape
        own = g.node("Shape", [v.name])[0]
        k = int(g.rng.integers(v.rank))
        one = g.node("Gather", [own, g.constant(np.array([k]), plain=True)], axis=0)[0]
        parts = []
        for n in wanted:
            parts.append(one if n == v.shape[k] and g.chance(0.5) else g.axes([n]))
        name = g.node("Reshape", [v.name, g.node("Concat", parts, axis=0)[0]])[0]
    else:
        name = g.node("Reshape", [v.name, g.axes(wanted)])[0]
    g.add(name, v.kind, shape_)


def squeeze(g: Grammar) -> None:
    v = g.pick(*g.pool)
    if g.chance(0.5):
        ones = [k for k, n in enumerate(v.shape) if n == 1]
        if not ones:
            raise NotHere
        axes = ones[: int(g.rng.integers(1, len(ones) + 1))]
        op, shape = "Squeeze", [n for k, n in enumerate(v.shape) if k not in axes]
    else:
        axes = [int(g.rng.integers(v.rank + 1))]
        op, shape = "Unsqueeze", [*v.shape[: axes[0]], 1, *v.shape[axes[0] :]]
    if g.opset >= 13:
        rank = v.rank if op == "Squeeze" else v.rank + 1
        if g.chance(0.4):
            axes = [a - rank for a in axes]
        name = g.node(op, [v.name, g.axes(axes)])[0]
    else:
        name = g.node(op, [v.name], axes=axes)[0]
    g.add(name, v.kind, shape)


def slice_(g: Grammar) -> None:
    v = g.pick(*g.pool)
    if not v.rank or g.opset < 10:
        raise NotHere
    axis = int(g.rng.integers(v.rank))
    n = v.shape[axis]
    start, end = int(g.rng.integers(-n, n)), int(g.pick(n, n - 1, -1, 2**31 - 1, 1))
    step = int(g.pick(1, 1, 2, -1))
    if step < 0:
        start, end = int(g.pick(n - 1, -1)), int(g.pick(-(2**31), 0))
    length = len(range(n)[start : end if end > -(2**31) else None : step])
    if not length:
        raise NotHere
    inputs = [v.name, g.axes([start]), g.axes([end]), g.axes([axis if g.chance(0.5) else
                                                              axis - v.rank])]  # fmt: skip
    if step != 1 or g.chance(0.3):
        inputs.append(g.axes([step]))
    shape = list(v.shape)
    shape[axis] = length
    g.add(g.node("Slice", inputs)[0], v.kind, shape)


def gather(g: Grammar) -> None:
    v = g.pick(*g.pool)
    if not v.rank:
        raise NotHere
    axis = int(g.rng.integers(v.rank))
    shape = g.pick((), (1,), (2,), (3,), (2, 2))
    low = -v.shape[axis] if g.opset >= 11 else 0
    indices = g.rng.integers(low, v.shape[axis], size=shape)
    name = g.node("Gather", [v.name, g.constant(np.asarray(indices, dtype=np.int64), plain=True)],
                  axis=axis)[0]  # fmt: skip
    g.add(name, v.kind, (*v.shape[:axis], *shape, *v.shape[axis + 1 :]))


def split(g: Grammar) -> None:
    v = g.pick(*g.pool)
    axes = [k for k, n in enumerate(v.shape) if n >= 2]
    if not axes:
        raise NotHere
    axis = int(g.rng.choice(axes))
    first = int(g.rng.integers(1, v.shape[axis]))
    sizes = [first, v.shape[axis] - first]
    if g.opset >= 13:
        names = g.node("Split", [v.name, g.axes(sizes)], 2, axis=axis)
    else:
        names = g.node("Split", [v.name], 2, axis=axis, split=sizes)
    for k in (0, 1):
        g.add(names[k], v.kind, [sizes[k] if a == axis else n for a, n in enumerate(v.shape)])


def concat(g: Grammar) -> None:
    a = g.pick(*g.pool)
    others = [v for v in g.pool if v.kind == a.kind and v.rank == a.rank]
    b = g.pick(*others)
    if not a.rank:
        raise NotHere
    axis = int(g.rng.integers(a.rank))
    if any(m != n for k, (m, n) in enumerate(zip(a.shape, b.shape, strict=True)) if k != axis):
        b = a
    shape = list(a.shape)
    shape[axis] += b.shape[axis]
    g.add(g.node("Concat", [a.name, b.name], axis=axis if g.opset < 11 else axis - a.rank)[0],
          a.kind, shape)  # fmt: skip


def expand(g: Grammar) -> None:
    v = g.some()
    wanted = [n if n > 1 or g.chance(0.5) else int(g.pick(1, 2, 3)) for n in v.shape]
    if g.chance(0.3):
        wanted = [int(g.pick(1, 2)), *wanted]
    if g.chance(0.5):
        g.add(g.node("Expand", [v.name, g.axes(wanted)])[0], v.kind, wanted)
        return
    repeats = [int(g.pick(1, 1, 2, 3)) for _ in v.shape]
    if not repeats:
        raise NotHere
    g.add(g.node("Tile", [v.name, g.axes(repeats)])[0], v.kind,
          [n * r for n, r in zip(v.shape, repeats, strict=True)])  # fmt: skip


def pad(g: Grammar) -> None:
    v = g.some()
    if not v.rank or v.kind == "float16":
        raise NotHere
    axis = int(g.rng.integers(v.rank))
    before, after = int(g.rng.integers(0, 2)), int(g.rng.integers(0, 2))
    mode = str(g.pick("constant", "reflect", "edge"))
    if mode == "reflect" and v.shape[axis] < 2:
        raise NotHere
    pads = [0] * (2 * v.rank)
    pads[axis], pads[axis + v.rank] = before, after
    if g.opset < 11:
        name = g.node("Pad", [v.name], mode=mode, pads=pads, value=0.3)[0]
    else:
        fill = [g.constant(np.asarray(g.pick(0.0, 2.0, -3.0), dtype=v.kind), plain=True)]
        more = fill if mode == "constant" and g.chance(0.6) else []
        name = g.node("Pad", [v.name, g.axes(pads), *more], mode=mode)[0]
    shape = list(v.shape)
    shape[axis] += before + after
    g.add(name, v.kind, shape)


def resize(g: Grammar) -> None:
    v = g.some("float32")
    if v.rank != 4 or g.opset < 11:
        raise NotHere
    scales = [1.0, 1.0, float(g.pick(1, 2, 3)), float(g.pick(1, 2))]
    mode = str(g.pick("nearest", "linear", "cubic"))
    how = str(g.pick("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel",
                     "tf_crop_and_resize"))  # fmt: skip
    roi = ""
    at: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": how}
    if how == "tf_crop_and_resize":
        roi = g.constant(np.array([0, 0, -0.5, 0, 1, 1, 1.5, 1], dtype=np.float32), plain=True)
        at["extrapolation_value"] = -5.0
    elif g.opset < 13:
        roi = g.constant(np.zeros(0, dtype=np.float32), plain=True)
    name = g.node("Resize", [v.name, roi, g.constant(np.array(scales, dtype=np.float32),
                                                     plain=True)], **at)[0]  # fmt: skip
    g.add(name, v.kind, [int(n * s) for n, s in zip(v.shape, scales, strict=True)])


def pool(g: Grammar) -> None:
    v = g.some()
    if v.rank < 3:
        raise NotHere
    if g.chance(0.5):
        op = g.pick("GlobalAveragePool", "GlobalMaxPool")
        g.add(g.node(op, [v.name])[0], v.kind, (*v.shape[:2], *[1] * (v.rank - 2)))
        return
    op = g.pick("AveragePool", "MaxPool")
    kernel = [int(g.rng.integers(1, min(n, 3) + 1)) for n in v.shape[2:]]
    pads = [int(k > 1 and g.chance(0.4)) for k in kernel]
    stride = [int(g.pick(1, 1, 2)) for _ in kernel]
    at: dict[str, Any] = {"kernel_shape": kernel, "pads": [*pads, *pads], "strides": stride}
    if op == "AveragePool" and g.chance(0.5):
        at["count_include_pad"] = 1
    shape = [(n + 2 * p - k) // s + 1
             for n, p, k, s in zip(v.shape[2:], pads, kernel, stride, strict=True)]  # fmt: skip
    if min(shape) < 1:
        raise NotHere
    g.add(g.node(op, [v.name], **at)[0], v.kind, (*v.shape[:2], *shape))


def reduce(g: Grammar) -> None:
    v = g.some()
    if not v.rank:
        raise NotHere
    op = g.pick("ReduceMean", "ReduceMean", "ReduceMax", "ReduceMin")
    count = int(g.rng.integers(1, v.rank + 1))
    axes = sorted(int(a) for a in g.rng.choice(v.rank, size=count, replace=False))
    keep = int(g.chance(0.6))
    shape = [1 if k in axes else n for k, n in enumerate(v.shape) if keep or k not in axes]
    given = [a - v.rank for a in axes] if g.opset >= 11 and g.chance(0.5) else axes
    if g.opset >= 18:
        name = g.node(op, [v.name, g.axes(given)], keepdims=keep)[0]
    else:
        name = g.node(op, [v.name], axes=given, keepdims=keep)[0]
    g.add(name, v.kind, shape)


def batch_norm(g: Grammar) -> None:
    v = g.some()
    if v.rank < 2 or v.kind != "float32":
        raise NotHere
    c = v.shape[1]
    numbers = [g.rng.normal(size=c).astype(np.float32) for _ in range(3)]
    numbers.append((np.abs(g.rng.normal(size=c)) + 0.05).astype(np.float32))
    names = [g.constant(n, plain=True) for n in numbers]
    g.add(g.node("BatchNormalization", [v.name, *names], epsilon=1e-3)[0], v.kind, v.shape)


def dropout(g: Grammar) -> None:
    v = g.some()
    if g.opset < 12:
        g.add(g.node("Dropout", [v.name], ratio=0.5)[0], v.kind, v.shape)
        return
    inputs = [v.name]
    if g.chance(0.6):
        inputs.append(g.constant(np.float32(0.5), plain=True))
        if g.chance(0.6):
            inputs.append(g.constant(np.asarray(g.chance(0.4)), plain=True))
    g.add(g.node("Dropout", inputs)[0], v.kind, v.shape)


def recurrent(g: Grammar) -> None:
    v = g.some("float32")
    if v.rank != 3:
        raise NotHere
    op, hidden = g.pick("LSTM", "GRU", "RNN"), int(g.rng.integers(1, 4))
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[op]
    both = int(g.chance(0.3)) + 1
    at: dict[str, Any] = {"hidden_size": hidden}
    if both == 2:
        at["direction"] = "bidirectional"
    if op == "GRU" and g.chance(0.15):
        at["activations"] = ["Tanh", "Tanh"] * both
    if op == "RNN" and g.chance(0.15):
        at["activations"] = ["Relu"] * both
    wide = float(g.pick(1, 3, 30))
    w = (g.rng.normal(size=(both, gates * hidden, v.shape[2])) * wide).astype(np.float32)
    r = (g.rng.normal(size=(both, gates * hidden, hidden)) * wide).astype(np.float32)
    inputs = [v.name, g.constant(w, plain=True), g.constant(r, plain=True)]
    if g.chance(0.3):
        start = (g.rng.normal(size=(both, v.shape[1], hidden)) * g.pick(0.1, 3)).astype(np.float32)
        inputs += ["", "", g.constant(start, plain=True)]
    y, state = g.node(op, inputs, 2, **at)
    g.add(y, "float32", (v.shape[0], both, v.shape[1], hidden))
    g.add(state, "float32", (both, v.shape[1], hidden))


def norm(g: Grammar) -> None:
    """Norms as one op, with all that can be odd about them."""
    v = g.some()
    if not v.rank or v.shape[-1] < 2 or v.kind == "float64":
        raise NotHere
    n, at = v.shape[-1], {"epsilon": float(g.pick(1e-5, 1e-12, 1e-3))}
    gain = lambda: g.constant((g.rng.normal(size=n) * 2).astype(v.kind), plain=True)  # noqa: E731
    how = g.pick("LayerNormalization", "SimplifiedLayerNormalization", "LpNormalization",
                 "SkipLayerNormalization", "RMSNormalization")  # fmt: skip
    axis = int(g.pick(-1, v.rank - 1))
    if how == "LayerNormalization" and g.opset >= 17:
        inputs = [v.name, gain()] + ([gain()] if g.chance(0.7) else [])
        if g.chance(0.15) and v.rank > 2:
            size = v.shape[-2] * n
            shape = (v.shape[-2], n)
            inputs = [v.name, g.constant(g.rng.normal(size=size).astype(v.kind).reshape(shape),
                                         plain=True)]  # fmt: skip
            axis = -2
        name = g.node(how, inputs, axis=axis, **at)[0]
    elif (how == "SimplifiedLayerNormalization" and v.kind == "float32") or (
        how == "RMSNormalization" and g.opset >= 23
    ):
        name = g.node(how, [v.name, gain()], axis=axis, **at)[0]
    elif how == "LpNormalization" and v.kind == "float32":
        name = g.node(how, [v.name], axis=int(g.pick(-1, 0)), p=int(g.pick(2, 2, 1)))[0]
    elif how == "SkipLayerNormalization" and v.kind == "float32" and v.rank == 3:
        name = g.node(how, [v.name, v.name, gain(), gain()], domain=MICROSOFT, **at)[0]
    else:
        raise NotHere
    g.add(name, v.kind, v.shape)


def spelled_norm(g: Grammar) -> None:
    """Norms spelled out, some of them with one step that is not as it should be."""
    v = g.some("float32")
    if not v.rank or v.shape[-1] < 2:
        raise NotHere
    n, wrong = (
        v.shape[-1],
        str(g.pick("", "", "", "", "n-1", "axis", "no epsilon", "divisor", "other")),
    )
    axis = -1 if wrong != "axis" or v.rank < 2 else -2
    if g.opset < 11 and axis < 0:
        axis += v.rank

    def over(op: str, name: str, keep: int = 1) -> str:
        attributes = op != "ReduceSum" or g.opset < 13
        if op != "ReduceSum" and g.opset >= 18:
            attributes = False
        if attributes:
            return g.node(op, [name], axes=[axis], keepdims=keep)[0]
        return g.node(op, [name, g.axes([axis])], keepdims=keep)[0]

    def mean(name: str) -> str:
        if wrong == "n-1" or g.chance(0.3):
            size = n - 1 if wrong == "n-1" and n > 2 else n
            size = 1 if wrong == "divisor" else size
            total = over("ReduceSum", name)
            if g.chance(0.5):
                return g.node("Div", [total, g.number("float32", float(size))])[0]
            return g.node("Mul", [total, g.number("float32", float(np.float32(1 / size)))])[0]
        return over("ReduceMean", name)

    kind = g.pick("layer", "rms", "unit", "l2", "cancel")
    epsilon = g.number("float32", float(g.pick(1e-5, 1e-3, 1e-12)))
    row = v.name
    if kind in ("layer", "cancel"):
        row = g.node("Sub", [v.name, mean(v.name)])[0]
    other = row if wrong != "other" else g.some("float32").name
    if wrong == "other" and {p.name: p.shape for p in g.pool}.get(other) != v.shape:
        other = row
    if kind == "l2":
        length = over("ReduceL2", other)
        if wrong != "no epsilon":
            length = g.node("Max", [length, epsilon])[0]
    else:
        if kind == "cancel":
            squares = mean(g.node("Mul", [v.name, v.name])[0])
            m = mean(v.name)
            radicand = g.node("Sub", [squares, g.node("Mul", [m, m])[0]])[0]
            radicand = g.node("Max", [radicand, g.number("float32", 0.0)])[0]
        else:
            square = g.node("Mul", [other, other])[0] if g.chance(0.5) else (
                g.node("Pow", [other, g.number("float32", 2.0)])[0])  # fmt: skip
            radicand = over("ReduceSum", square) if kind == "unit" else mean(square)
        if wrong != "no epsilon":
            radicand = g.node("Add", [radicand, epsilon])[0]
        length = g.node("Sqrt", [radicand])[0]
    if g.chance(0.5):
        made = g.node("Div", [row, length])[0]
    else:
        inverse = g.node("Reciprocal", [length])[0]
        if g.chance(0.4):
            c = g.against(v)
            inverse = g.node("Mul", [inverse, c.name])[0]
        made = g.node("Mul", [row, inverse])[0]
    if g.chance(0.5):
        gain = g.constant(g.rng.normal(size=n).astype(np.float32))
        made = g.node("Mul", [made, gain])[0]
        if g.chance(0.6):
            made = g.node("Add", [made, g.constant(g.rng.normal(size=n).astype(np.float32))])[0]
    g.add(made, "float32", v.shape)


def linear(g: Grammar) -> None:
    v = g.some("float32")
    if not v.rank:
        raise NotHere
    out = int(g.rng.integers(1, 7))
    if v.rank == 2 and g.chance(0.4):
        inputs = [v.name, g.constant(g.rng.normal(size=(v.shape[1], out)).astype(np.float32)),
                  g.constant(g.rng.normal(size=out).astype(np.float32))]  # fmt: skip
        g.add(g.node("Gemm", inputs, alpha=float(g.pick(1, 0.5)))[0], v.kind, (v.shape[0], out))
        return
    if v.rank >= 3 and g.chance(0.4):
        w = g.rng.normal(size=(out, v.shape[1], *[1] * (v.rank - 2))).astype(np.float32)
        g.add(g.node("Conv", [v.name, g.constant(w)])[0], v.kind,
              (v.shape[0], out, *v.shape[2:]))  # fmt: skip
        return
    w = g.rng.normal(size=(v.shape[-1], out)).astype(np.float32)
    g.add(g.node("MatMul", [v.name, g.constant(w)])[0], v.kind, (*v.shape[:-1], out))


def zeros(g: Grammar) -> None:
    v = g.some()
    made = g.node("ConstantOfShape", [g.axes([int(g.pick(1, v.shape[-1] if v.rank else 1))])],
                  value=numpy_helper.from_array(
                      np.array([g.pick(0, 1.5)], dtype=v.kind)))[0]  # fmt: skip
    if v.rank:
        g.add(g.node("Add", [v.name, made])[0], v.kind, v.shape)


def unknown(g: Grammar) -> None:
    """Ops without a rule."""
    v = g.some()
    op = g.pick("Sin", "Cos", "Ceil", "Floor")
    if v.kind != "float32":
        raise NotHere
    g.add(g.node(op, [v.name])[0], v.kind, v.shape)


def function(g: Grammar) -> None:
    """A function of the model's own with the name of a standard op."""
    v = g.some()
    op = str(g.pick("Relu", "Sigmoid", "Softmax", "Tanh"))
    if not any(f.name == op for f in g.functions):
        body = [helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(
            np.array(-3, dtype=v.kind))), helper.make_node("Mul", ["a", "c"], ["b"])]  # fmt: skip
        if any(True for f in g.functions):
            raise NotHere
        g.functions.append(helper.make_function("mine", op, ["a"], ["b"], body,
                                                [helper.make_opsetid("", g.opset)]))  # fmt: skip
        g.function_kind = v.kind
    if g.function_kind != v.kind:
        raise NotHere
    g.add(g.node(op, [v.name], domain="mine")[0], v.kind, v.shape)


STEPS: tuple[Callable[[Grammar], None], ...] = (
    unary, unary, unary, bent, bent, clip, clip, prelu, power, with_constant, with_constant,
    with_constant, with_other, with_other, activation, activation, cast, quantise, quantise,
    dequantise, dynamic, softmax, transpose, reshape, reshape, squeeze, squeeze, slice_, gather,
    split, concat, expand, pad, resize, pool, pool, reduce, reduce, batch_norm, dropout, recurrent,
    norm, norm, spelled_norm, spelled_norm, linear, zeros, unknown, function,
)  # fmt: skip
