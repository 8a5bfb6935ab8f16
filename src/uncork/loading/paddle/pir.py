"""Paddle's newer programs, JSON in which operators number their values (PIR): as older ones are.

Operators are renamed to those of the older programs that mean the same, and their inputs by what
they are for. One that is not in the table keeps its own name.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from uncork.core.errors import UncorkError
from uncork.loading.paddle.program import DTYPES, Operator, Program, Variable

_MOST_BYTES = 1 << 28
_TYPES = {
    "bool": np.dtype(np.bool_), "i8": np.dtype(np.int8), "ui8": np.dtype(np.uint8),
    "i16": np.dtype("<i2"), "i32": np.dtype("<i4"), "i64": np.dtype("<i8"),
    "f16": np.dtype("<f2"), "bf16": np.dtype(ml_dtypes.bfloat16), "f32": np.dtype("<f4"),
    "f64": np.dtype("<f8"),
}  # fmt: skip
_NAMED = {"bool": "bool", "int8": "i8", "uint8": "ui8", "int16": "i16", "int32": "i32",
          "int64": "i64", "float16": "f16", "bfloat16": "bf16", "float32": "f32",
          "float64": "f64"}  # fmt: skip
_NUMBERS = {dtype: number for number, dtype in DTYPES.items()}
_ONE = ("X",), ("Out",)
_TWO = ("X", "Y"), ("Out",)
_CONV = ("Input", "Filter"), ("Output",)
# What an operator is called in older programs, and what its inputs and outputs are for.
_OPERATORS: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    **{kind: (kind, *_ONE) for kind in (
        "relu", "tanh", "sigmoid", "exp", "log", "sqrt", "abs", "erf", "softsign", "mish",
        "reciprocal", "swish", "silu", "relu6", "leaky_relu", "elu", "gelu", "softplus", "softmax",
        "log_softmax", "assign", "cast",
    )},
    "hardswish": ("hard_swish", *_ONE), "hardsigmoid": ("hard_sigmoid", *_ONE),
    "transpose": ("transpose2", *_ONE), "flatten": ("flatten_contiguous_range", *_ONE),
    "mean": ("reduce_mean", *_ONE),
    "add": ("elementwise_add", *_TWO), "subtract": ("elementwise_sub", *_TWO),
    "multiply": ("elementwise_mul", *_TWO), "divide": ("elementwise_div", *_TWO),
    "maximum": ("elementwise_max", *_TWO), "minimum": ("elementwise_min", *_TWO),
    "matmul": ("matmul_v2", *_TWO), "conv2d": ("conv2d", *_CONV),
    "depthwise_conv2d": ("depthwise_conv2d", *_CONV),
    "batch_norm_": ("batch_norm", ("X", "Mean", "Variance", "Scale", "Bias"), ("Y",)),
    "layer_norm": ("layer_norm", ("X", "Scale", "Bias"), ("Y",)),
    "dropout": ("dropout", ("X", "Seed", "Share"), ("Out",)),
    "pool2d": ("pool2d", ("X", "Ksize"), ("Out",)),
    "reshape": ("reshape2", ("X", "Shape"), ("Out",)),
    "squeeze": ("squeeze2", ("X", "Axes"), ("Out",)),
    "unsqueeze": ("unsqueeze2", ("X", "AxesTensor"), ("Out",)),
    "slice": ("slice", ("Input", "StartsTensor", "EndsTensor"), ("Out",)),
    "concat": ("concat", ("X", "AxisTensor"), ("Out",)),
    "shape": ("shape", ("Input",), ("Out",)), "shape64": ("shape", ("Input",), ("Out",)),
    "scale": ("scale", ("X", "ScaleTensor"), ("Out",)),
    "clip": ("clip", ("X", "Min", "Max"), ("Out",)),
    "embedding": ("lookup_table_v2", ("Ids", "W"), ("Out",)),
    "sum": ("reduce_sum", ("X", "Axis"), ("Out",)),
    "max": ("reduce_max", ("X", "Axis"), ("Out",)), "min": ("reduce_min", ("X", "Axis"), ("Out",)),
    "argmax": ("arg_max", ("X", "Axis"), ("Out",)), "argmin": ("arg_min", ("X", "Axis"), ("Out",)),
    "rnn": ("rnn", ("Input", "PreState", "WeightList"), ("Out",)),
    "topk": ("top_k_v2", ("X", "K"), ("Out", "Indices")),
    "full": ("fill_constant", (), ("Out",)), "full_int_array": ("assign_value", (), ("Out",)),
}  # fmt: skip
_SETTINGS = {  # what settings are called in older programs
    "transpose_x": "trans_x", "transpose_y": "trans_y", "perm": "axis", "keepdim": "keep_dim",
}  # fmt: skip


def is_pir(start: bytes) -> bool:
    """Whether a file begins as such a program does."""
    return start.startswith(b'{"base_code":{"magic":"pir"')


def read_pir(path: Path) -> Program:
    """The program in an inference.json."""
    size = path.stat().st_size
    if size > _MOST_BYTES:
        raise UncorkError(f"{path} has {size} bytes: too many for a program")
    try:
        data = json.loads(path.read_bytes())
        blocks = data["program"]["regions"][0]["blocks"]
        return _Reader(path).read(blocks[0]["ops"])
    except (ValueError, KeyError, IndexError, TypeError, RecursionError) as error:
        raise UncorkError(
            f"{path} is no program of Paddle, or is damaged: {type(error).__name__} {error}"
        ) from error


class _Reader:
    """The operators of a block, one after the other."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.names: dict[int, str] = {}  # of the values by number
        self.several: dict[str, list[str]] = {}  # values that were put together
        self.variables: dict[str, Variable] = {}
        self.operators: list[Operator] = []

    def read(self, stored: list[dict[str, Any]]) -> Program:
        for one in stored:
            self._operator(one)
        if not self.operators:
            raise UncorkError(f"{self.path} is no program of Paddle: it has no operators")
        return Program(self.path, self.variables, self.operators)

    def _operator(self, stored: dict[str, Any]) -> None:
        kind = str(stored["#"]).rpartition(".")[2]
        made = stored.get("O", [])
        made = made if isinstance(made, list) else [made]
        if stored["#"] == "p":  # a parameter
            about = stored.get("OA", [1])  # first of all, whether it was saved
            self._named(made[0], str(stored["A"][3]), kept=bool(about[0]))
            return
        settings = {one["N"]: _setting(one["AT"]) for one in stored.get("A", [])}
        given = [self._value(one) for one in stored.get("I", [])]
        if kind == "data":
            name = str(settings.get("name") or f"input_{made[0]['%']}")
            self._named(made[0], name)
            self.operators.append(Operator("feed", {}, {"Out": [name]}))
            return
        if kind == "fetch":
            self.operators.append(Operator("fetch", {"X": given[:1]}))
            return
        outputs = [self._named(one, f"{kind}_{one['%']}") for one in made]
        if kind == "combine":
            self.several[outputs[0]] = given
            return
        self.operators.append(self._renamed(kind, given, outputs, settings))

    def _renamed(
        self, kind: str, given: list[str], outputs: list[str], settings: dict[str, Any]
    ) -> Operator:
        known = _OPERATORS.get(kind)
        if known is None:
            spread = [one for name in given for one in self.several.get(name, [name])]
            return Operator(kind, {"X": spread}, {"Out": outputs}, settings)
        older, whats, results = known
        inputs = {
            what: self.several.get(name, [name])
            for what, name in zip(whats, given, strict=False)
            if name
        }
        made = {what: [name] for what, name in zip(results, outputs, strict=False)}
        settings = {_SETTINGS.get(key, key): value for key, value in settings.items()}
        if kind == "mean":
            settings["dim"] = settings.pop("axis", [])
        if kind == "cast":
            settings["out_dtype"] = settings.get("dtype")
        if kind == "full_int_array":
            settings["values"] = settings.pop("value", [])
            settings["shape"] = [len(settings["values"])]
        if kind == "dropout":
            settings["dropout_implementation"] = settings.pop("mode", "")
        return Operator(older, inputs, made, settings)

    def _value(self, stored: dict[str, Any]) -> str:
        return self.names.get(int(stored["%"]), "")

    def _named(self, stored: dict[str, Any], name: str, kept: bool = False) -> str:
        """Give a value its name; its type and shape are as written beside it."""
        number = int(stored["%"])
        if name in self.variables:
            name = f"{name}%{number}"
        dtype, dims = None, None
        described = stored.get("TT", {}).get("D")
        if isinstance(described, list) and len(described) > 1 and isinstance(described[1], list):
            dtype = _TYPES.get(str(described[0]["#"]).rpartition("t_")[2])
            dims = tuple(int(n) for n in described[1])
        self.names[number] = name
        self.variables[name] = Variable(dtype, dims, kept)
        return name


def _setting(stored: dict[str, Any]) -> Any:
    """An attribute's value: numbers, texts, and lists of them; a type by its older number."""
    kind, value = str(stored["#"]).rpartition("a_")[2], stored.get("D")
    if kind == "array" and isinstance(value, list):
        return [_setting(one) for one in value]
    if kind == "dtype":
        return _NUMBERS.get(_TYPES.get(_NAMED.get(str(value), ""), np.dtype("V1")), -1)
    if kind in ("f32", "f64") and isinstance(value, int | float):
        return float(value)
    return value
