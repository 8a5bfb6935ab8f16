"""One graph held against onnxruntime: inputs driven towards the bounds, and what they show."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

from fuzz_domains.graphs import Grammar, Graph
from fuzz_domains.rounding import coarsest, in_the_image, source_of, swapped_by_rounding
from uncork.core.errors import UncorkError
from uncork.domain import Box, Domain, Image
from uncork.loading.onnx.arriving.domain import Arriving, arriving
from uncork.loading.onnx.file import OnnxModel

_ROUNDS = 5  # of hill climbing
_SPECIAL = (0.0, -0.0, 1e-45, -1e-45, 1e-40, 1e-38, 1e-30, 1e-20, 1e-10, 1e-5, 1.0, -1.0, 20.0,
            -20.0, 104.0, -104.0, 65504.0, -65504.0, 1e10, -1e10, 1e19, -1e19, 1e30, -1e30, 3e38,
            -3e38)  # fmt: skip


@dataclass
class Count:
    """What was seen in all graphs so far."""

    graphs: int = 0
    run: int = 0
    known: int = 0
    argmaxes: int = 0
    doubts: int = 0
    violations: list[str] = field(default_factory=list)
    crashed: list[int] = field(default_factory=list)  # seeds that ended the run-time's process
    ops: Counter[str] = field(default_factory=Counter)
    ops_known: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    stopped: Counter[str] = field(default_factory=Counter)

    def made(self, seed: int) -> tuple[Graph, np.random.Generator]:
        """The graph of that seed, counted."""
        rng = np.random.default_rng(seed)
        graph = Grammar(rng).build()
        self.graphs += 1
        for op in graph.ops:
            self.ops[op] += 1
        return graph, rng

    def add(self, other: Count) -> None:
        """With what was seen elsewhere."""
        for name, seen in vars(other).items():
            vars(self)[name] += seen

    def text(self) -> str:
        """For people: the figures, and each op with how often a domain rested on it."""
        lines = [
            f"{self.graphs} graphs, {self.run} run by onnxruntime, {self.known} with a domain "
            f"({dict(self.kinds)}), {self.argmaxes} outputs held against the logits "
            f"({self.doubts} in doubt): {len(self.violations)} violations, "
            f"{len(self.crashed)} crashed the run-time {self.crashed or ''}".rstrip(),
            "ops in graphs with a domain, of all: "
            + ", ".join(f"{op} {self.ops_known[op]}/{n}" for op, n in self.ops.most_common()),
            *self.violations[:20],
        ]
        return "\n".join(lines)


def hold(seed: int, count: Count) -> None:
    """Make the graph of that seed, and hold it."""
    graph, rng = count.made(seed)
    model = OnnxModel(Path(f"seed-{seed}.onnx"), graph.model)
    try:
        choice, node = model.head_node()
    except UncorkError:
        return
    found = arriving(model.graph, node, choice.weight.shape[1])
    output = graph.model.graph.output[0].name
    names = dict.fromkeys([node.input, output, *(node.dynamic or ())])
    for assumption in found.assumed:
        names.update(dict.fromkeys(assumption.names))
    source = source_of(model, found)
    if source is not None:
        names[source] = None
    session = _session(graph, list(names), rng)
    if session is None:
        return
    count.run += 1
    if found.domain is not None:
        count.known += 1
        count.kinds[_called(found.domain)] += 1
        for op in graph.ops:
            count.ops_known[op] += 1
    climb = _Climb(
        seed, graph, model, choice, node, found, session, list(names), output, count, rng, source
    )
    climb.run()


def _called(domain: Domain) -> str:
    inner = domain
    while isinstance(inner, Image):
        inner = inner.inner
    return type(inner).__name__ if not isinstance(domain, Image) else (
        f"Image of {type(inner).__name__}")  # fmt: skip


def _session(graph: Graph, names: list[str], rng: np.random.Generator) -> Any | None:
    model = onnx.ModelProto()
    model.CopyFrom(graph.model)
    there = {o.name for o in model.graph.output} | {i.name for i in model.graph.input}
    for name in names:
        if name not in there:
            model.graph.output.append(onnx.ValueInfoProto(name=name))
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    if rng.random() < 0.4:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        return onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
    except Exception:  # an op or a type this run-time does not have
        return None


class _Climb:
    """Inputs for one graph: ordinary, extreme, and climbing towards the bounds."""

    def __init__(self, seed: int, graph: Graph, model: Any, choice: Any, node: Any, found: Arriving,
                 session: Any, names: list[str], output: str, count: Count,
                 rng: np.random.Generator, source: str | None) -> None:  # fmt: skip
        self.source = source
        self.seed, self.graph, self.model, self.choice, self.node = (
            seed,
            graph,
            model,
            choice,
            node,
        )
        self.found, self.session, self.names, self.output = found, session, names, output
        self.count, self.rng = count, rng
        self.weight = np.asarray(choice.weight, dtype=np.float64)
        bias = 0.0 if choice.bias is None else choice.bias
        self.bias = np.broadcast_to(np.asarray(bias, dtype=np.float64), (len(self.weight),))
        self.failed = False

    def run(self) -> None:
        shape, kind = self.graph.shape, self.graph.kind
        starts = [self.rng.normal(size=shape) * scale for scale in (1.0, 30.0)]
        starts.append(self._special(shape))
        starts.append(self._special(shape))
        starts.append(np.broadcast_to(self._special((shape[0], *[1] * (len(shape) - 1))), shape))
        size = float(self.rng.choice(_SPECIAL[4:]))
        starts.append(
            size * (1 + self.rng.normal(size=shape) * float(self.rng.choice([1e-7, 0.1])))
        )
        best, best_score = starts[0], -np.inf
        with np.errstate(all="ignore"):
            for x in starts:
                score = self._try(x.astype(kind))
                if score > best_score:
                    best, best_score = x, score
            if self.found.domain is None:
                return
            for _ in range(_ROUNDS):
                x = np.array(best)
                mask = self.rng.random(size=shape) < 0.3
                change = (
                    self.rng.normal(size=shape) * np.abs(x) * float(self.rng.choice([0.01, 0.5]))
                )
                x = np.where(mask, x + change + self.rng.normal(size=shape) * 0.1, x)
                if self.rng.random() < 0.3:
                    x = np.where(mask, self._special(shape), x)
                score = self._try(x.astype(kind))
                if score > best_score:
                    best, best_score = x, score
                if self.failed:
                    return

    def _special(self, shape: tuple[int, ...]) -> np.ndarray:
        return self.rng.choice(_SPECIAL, size=shape)

    def _try(self, x: np.ndarray) -> float:
        """Run the graph on x; how near what arrives comes to the bounds."""
        if not np.isfinite(x).all():
            limit = np.finfo(x.dtype).max
            x = np.clip(np.nan_to_num(x), -limit, limit)
        wanted = [name for name in self.names if name != "x"]
        try:
            values = dict(zip(wanted, self.session.run(wanted, {"x": x}), strict=True))
        except Exception:  # what onnxruntime refuses at run time
            return -np.inf
        values["x"] = x
        for assumption in self.found.assumed:
            if assumption.names and not all(n in values for n in assumption.names):
                values.update({n: self._stored(n) for n in assumption.names if n not in values})
            if not assumption.holds(values):
                return -np.inf
        rows = self._rows(values)
        if rows is None:
            return -np.inf
        finite = np.isfinite(rows).all(axis=1)
        score = -np.inf
        if self.found.domain is not None and finite.any():
            score = self._inside(rows[finite], values)
        self._argmax(rows, finite, values[self.output], x)
        return score

    def _stored(self, name: str) -> np.ndarray:
        return np.asarray(self.model.constants.value(name))

    def _rows(self, values: dict[str, np.ndarray]) -> np.ndarray | None:
        node = self.node
        x = values[node.input].astype(np.float64)
        constants = self.model.constants
        if node.dynamic is not None:
            scale, zero = (values[name].astype(np.float64) for name in node.dynamic)
            x = (x - zero) * scale
        elif node.quantised is not None or node.in_steps is not None:
            names = node.quantised or node.in_steps
            x = x - (np.asarray(constants.value(names[1]), dtype=np.float64) if names[1] else 0.0)
            if node.quantised is not None:
                x = x * np.asarray(constants.value(names[0]), dtype=np.float64)
        if x.ndim < -node.axis:
            return None
        return np.moveaxis(x, node.axis, -1).reshape(-1, x.shape[node.axis])

    def _inside(self, rows: np.ndarray, values: dict[str, np.ndarray]) -> float:
        domain = self.found.domain
        assert domain is not None
        if isinstance(domain, Box):
            low, high = domain.bounds(rows.shape[1])
            out = np.maximum(low - rows, rows - high)
            size = 1e-30 + np.minimum(np.abs(low), 1e30) + np.minimum(np.abs(high), 1e30)
            near = np.where(np.isfinite(out), out / size, -1e9)
            if (out > 0).any():
                row, k = np.argwhere(out > 0)[0]
                self._violated(f"{rows[row, k]!r} outside [{low[k]!r}, {high[k]!r}]")
            return float(near.max())
        few = rows[:16]
        if self.source is not None:  # claimed in real numbers
            given = values[self.source].astype(np.float64)
            inside = in_the_image(domain, few, given, self.model)
        else:
            inside = domain.contains(few, 1e-9)
        if not inside.all():
            self._violated(f"{few[~inside][0]!r} outside {domain}")
        return float(np.abs(few).max())

    def _argmax(self, rows: np.ndarray, finite: np.ndarray, out: np.ndarray, x: np.ndarray) -> None:
        """Whether the class with the largest logit has the largest output, up to rounding."""
        if self.count.argmaxes is None or self.node.class_axis is None:
            return
        if self.choice.doubts:
            self.count.doubts += 1
            return
        classes = len(self.weight)
        axes = [k for k, n in enumerate(out.shape) if n == classes]
        logits = rows @ self.weight.T + self.bias
        if len(axes) != 1 or out.size != logits.size or out.dtype.kind != "f":
            return
        # The one axis that has as many entries as there are classes; rows keep their order only
        # where it was the last and the rest was not turned: then each row is compared.
        values = np.moveaxis(out, axes[0], -1).reshape(-1, classes).astype(np.float64)
        if self.turned():
            return
        unit = {"float16": 2.0**-10, "float32": 2.0**-22, "float64": 2.0**-22}[out.dtype.name]
        size = np.abs(rows) @ np.abs(self.weight).T + np.abs(self.bias)
        clear = finite & np.isfinite(values).all(axis=1) & (np.abs(logits).max(axis=1) < 1e4)
        first = logits.argmax(axis=1)
        order = np.sort(logits, axis=1)
        # Only where the gap is clear: terms are rounded, and very small ones flushed to zero.
        lost = 2 * rows.shape[1] * coarsest(self.model).tiny
        clear &= (order[:, -1] - order[:, -2]) > 64 * unit * size.max(axis=1) + lost
        at = np.arange(len(values))
        spread = values.max(axis=1) - values[at, first]
        tied = spread <= 32 * unit * np.abs(values).max(axis=1)
        self.count.argmaxes += int(clear.sum())
        if (clear & ~tied).any():
            k = int(np.flatnonzero(clear & ~tied)[0])
            pair = int(first[k]), int(values[k].argmax())
            if not self._rounded(x, k, pair):
                self._violated(f"class {first[k]} of {logits[k]} is not first in {values[k]}")

    def _rounded(self, x: np.ndarray, row: int, pair: tuple[int, int]) -> bool:
        """Whether a step after the head swapped two classes within its own rounding: run again with
        every step's result shown."""
        nodes = self.model.graph.nodes[self.node.node + 1 :]
        names = list(dict.fromkeys(node.output[0] for node in nodes))
        session = _session(self.graph, names, self.rng)
        if session is None:
            return False
        values = dict(zip(names, session.run(names, {"x": x}), strict=True))
        return swapped_by_rounding(self.model, self.node.node, values, row, pair, len(self.weight))

    def turned(self) -> bool:
        """Whether rows may have changed places after the head."""
        after = self.model.graph.nodes[self.node.node + 1 :]
        return any(node.op_type in ("Transpose", "Reshape") for node in after)

    def _violated(self, text: str) -> None:
        if not self.failed:
            self.failed = True
            self.count.violations.append(f"seed {self.seed}: {text} ({self.found.why})")
