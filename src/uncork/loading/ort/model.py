"""A model of ONNX Runtime's as the ONNX model it was made from: the same nodes and constants.

The format is a FlatBuffers one of the same values as ONNX's own (onnxruntime/core/flatbuffers).
Nodes are put in an order in which each comes after those it takes from. Those that the run-time
fused are taken apart again: a product, and the activation that follows it.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from uncork.core.errors import UncorkError
from uncork.core.text import printable
from uncork.loading.bounded.cursor import opened
from uncork.loading.bounded.flatbuffer import Buffer, Table

_MOST_TABLES = 1 << 22  # a few bytes each in the file, far more in memory
_DEEPEST = 16  # graphs inside graphs
_MOST_DIMENSIONS = 32
_INSIDE = 0  # where a tensor's values lie in the file itself, its offset elsewhere is negative
_VALUE, _PARAMETER = 1, 2  # kinds of a dimension
_TENSOR_TYPE = 1
_FLOAT, _INT, _STRING, _TENSOR, _GRAPH = 1, 2, 3, 4, 5
_FLOATS, _INTS, _STRINGS, _TENSORS, _GRAPHS = 6, 7, 8, 9, 10
_TEXT = 8  # the type of a tensor of texts
_FUSED = {"FusedGemm": "Gemm", "FusedConv": "Conv", "FusedMatMul": "MatMul"}
_INTEGERS = ("DynamicQuantizeMatMul", "MatMulIntegerToFloat")
_MICROSOFT = "com.microsoft"
# Names and defaults of the parameters of the activations that are fused.
_PARAMETERS = {"LeakyRelu": ("alpha",), "HardSigmoid": ("alpha", "beta"), "Elu": ("alpha",),
               "Relu": (), "Tanh": (), "Sigmoid": ()}  # fmt: skip


def read_ort(path: Path) -> Any:
    """The file's model as an `onnx.ModelProto`."""
    with opened(path) as cursor:
        buffer = Buffer(path, cursor.data)
        model = buffer.root().table(1)
        if model is None or model.table(7) is None:
            raise UncorkError(f"{path} holds no model: truncated or damaged")
        return _Reader(path, buffer).model(model)


class _Reader:
    def __init__(self, path: Path, buffer: Buffer) -> None:
        import onnx

        self.path, self.buffer, self.onnx = path, buffer, onnx
        self.tables = 0
        self.copied = 0
        self.made = 0
        self.ranks: dict[str, int] = {}  # of values by name, where the file tells

    def model(self, table: Table) -> Any:
        found = self.onnx.ModelProto()
        found.ir_version = self._counted(table.number(0, "q"), "version")
        for entry in self._each(table, 1):
            opset = found.opset_import.add()
            opset.domain, opset.version = entry.text(0), entry.number(1, "q")
        found.producer_name = table.text(2)
        for entry in self._each(table, 9):
            pair = found.metadata_props.add()
            pair.key, pair.value = entry.text(0), entry.text(1)
        graph = table.table(7)
        assert graph is not None
        self.graph(graph, found.graph, 0)
        return found

    def graph(self, table: Table, found: Any, depth: int) -> None:
        if depth > _DEEPEST:
            raise UncorkError(f"{self.path} is damaged: its graphs are nested without end")
        for one in self._each(table, 0):
            self.tensor(one, found.initializer.add())
        if table.vector(7, 4)[1]:
            raise UncorkError(f"{self.path} holds sparse tensors, which are not read")
        shown: dict[str, Table] = {}
        for one in self._each(table, 1):
            shown.setdefault(one.text(0), one)
        inputs, outputs = table.texts(5), table.texts(6)
        self._visited(len(inputs) + len(outputs))
        for names, place in ((inputs, found.input), (outputs, found.output)):
            for name in names:
                self.value(name, shown.get(name), place.add())
        ends = {*inputs, *outputs}
        for name, one in shown.items():
            if name and name not in ends:
                self.value(name, one, found.value_info.add())
        for stored in found.initializer:
            self.ranks[stored.name] = len(stored.dims)
        for given in (*found.input, *found.output, *found.value_info):
            if given.type.tensor_type.HasField("shape"):
                self.ranks.setdefault(given.name, len(given.type.tensor_type.shape.dim))
        nodes: list[Any] = []
        for one in self._each(table, 2):
            nodes += self.node(one, depth)
        found.node.extend(_in_order(nodes))

    def value(self, name: str, table: Table | None, found: Any) -> None:
        """A value's name, and its type and shape where it is a tensor."""
        found.name = name
        kind = None if table is None else table.table(2)
        if kind is None or kind.number(1, "B") != _TENSOR_TYPE:
            return
        tensor = kind.table(2)
        if tensor is None:
            return
        found.type.tensor_type.elem_type = tensor.number(0, "i")
        shape = tensor.table(1)
        if shape is None:
            return
        found.type.tensor_type.shape.SetInParent()
        if shape.vector(0, 4)[1] > _MOST_DIMENSIONS:
            raise UncorkError(f"{self.path} is damaged: a value has too many dimensions")
        for one in self._each(shape, 0):
            size = one.table(0)
            dimension = found.type.tensor_type.shape.dim.add()
            if size is not None and size.number(0, "b") == _VALUE:
                dimension.dim_value = size.number(1, "q")
            elif size is not None and size.number(0, "b") == _PARAMETER:
                dimension.dim_param = size.text(2)

    def tensor(self, table: Table, found: Any) -> None:
        found.name = table.text(0)
        begin, count = table.vector(2, 8)
        if count > _MOST_DIMENSIONS:
            raise UncorkError(f"{self.path} is damaged: a tensor has {count} dimensions")
        found.dims.extend(table.numbers(2, "i8").tolist())
        found.data_type = table.number(3, "i")
        if table.number(6, "q", -1) >= _INSIDE:
            raise UncorkError(f"{self.path} keeps {printable(found.name)[:80]!r} in another file")
        if found.data_type == _TEXT:
            return  # no weight, and nothing that is computed from one
        begin, size = table.vector(4, 1)
        self.copied += size
        if self.copied > self.buffer.size:
            raise UncorkError(f"{self.path} is damaged: its tensors lie over each other")
        found.raw_data = bytes(self.buffer.data[begin : begin + size])

    def node(self, table: Table, depth: int) -> list[Any]:
        found = self.onnx.NodeProto()
        found.name, found.domain, found.op_type = table.text(0), table.text(2), table.text(5)
        inputs, outputs = table.texts(8), table.texts(9)
        self._visited(len(inputs) + len(outputs))
        found.input.extend(inputs)
        found.output.extend(outputs)
        for one in self._each(table, 10):
            self.attribute(one, found.attribute.add(), depth)
        # Names that a graph inside it takes from this one: for the order of nodes.
        taken = table.texts(12)
        self._visited(len(taken))
        return self._taken_apart(found, taken)

    def attribute(self, table: Table, found: Any, depth: int) -> None:
        found.name, kind = table.text(0), table.number(2, "i")
        if not 0 <= kind <= 14:
            raise UncorkError(f"{self.path} is damaged: an attribute is of type {kind}")
        found.type = kind
        if kind == _FLOAT:
            found.f = table.number(3, "f", 0.0)
        elif kind == _INT:
            found.i = table.number(4, "q")
        elif kind == _STRING:
            found.s = table.text(5).encode()
        elif kind in (_TENSOR, _GRAPH):
            one = table.table(6 if kind == _TENSOR else 7)
            self._visited(1)
            if one is not None and kind == _TENSOR:
                self.tensor(one, found.t)
            elif one is not None:
                self.graph(one, found.g, depth + 1)
        elif kind == _FLOATS:
            found.floats.extend(table.numbers(8, "f4").tolist())
        elif kind == _INTS:
            found.ints.extend(table.numbers(9, "i8").tolist())
        elif kind == _STRINGS:
            texts = table.texts(10)
            self._visited(len(texts))
            found.strings.extend(text.encode() for text in texts)
        elif kind == _TENSORS:
            for one in self._each(table, 11):
                self.tensor(one, found.tensors.add())
        elif kind == _GRAPHS:
            for one in self._each(table, 12):
                self.graph(one, found.graphs.add(), depth + 1)

    def _taken_apart(self, node: Any, taken: Sequence[str]) -> list[Any]:
        """A node as ONNX has it: one that the run-time fused becomes the nodes it stands for."""
        node.doc_string = "\0".join(taken)  # until they are in order
        if node.domain == _MICROSOFT and node.op_type in _INTEGERS and len(node.output) == 1:
            return self._integers(node)
        if node.domain != _MICROSOFT or node.op_type not in _FUSED or len(node.output) != 1:
            return [node]
        options = {one.name: one for one in node.attribute}
        name = options["activation"].s.decode() if "activation" in options else ""
        given = (
            list(options["activation_params"].floats)
            if "activation_params" in options
            else [
                options[one].f for one in ("activation_alpha", "activation_beta") if one in options
            ]
        )
        if name and (name not in _PARAMETERS or len(given) < len(_PARAMETERS[name])):
            return [node]
        if node.op_type == "FusedMatMul":
            return self._products(node, options)
        extra = node.op_type == "FusedConv" and len(node.input) > 3 and bool(node.input[3])
        product = self.onnx.NodeProto()
        product.name, product.op_type = node.name, _FUSED[node.op_type]
        product.input.extend(node.input[:3] if extra else node.input)
        product.output.append(node.output[0])
        product.attribute.extend(one for one in node.attribute if not _of_activation(one.name))
        made = [product]
        if extra:
            made.append(self._next(made[-1], "Add", [node.input[3]]))
        if name:
            follows = self._next(made[-1], name, [])
            for key, value in zip(_PARAMETERS[name], given, strict=False):
                entry = follows.attribute.add()
                entry.name, entry.type, entry.f = key, _FLOAT, value
            made.append(follows)
        return made

    def _products(self, node: Any, options: Mapping[str, Any]) -> list[Any]:
        """A FusedMatMul: its inputs transposed, multiplied, and times a number."""
        if len(node.input) != 2 or any(
            name in options and options[name].i for name in ("transBatchA", "transBatchB")
        ):
            return [node]
        product = self.onnx.NodeProto()
        product.name, product.op_type = node.name, "MatMul"
        product.output.append(node.output[0])
        made = []
        for name, flag in zip(node.input, ("transA", "transB"), strict=True):
            if flag not in options or not options[flag].i:
                product.input.append(name)
                continue
            rank = self.ranks.get(name)
            if rank is None or rank < 2:
                return [node]
            turned = self._made("Transpose", [name], ["turned"])
            order = turned.attribute.add()
            order.name, order.type = "perm", _INTS
            order.ints.extend([*range(rank - 2), rank - 1, rank - 2])
            product.input.append(turned.output[0])
            made.append(turned)
        made.append(product)
        scale = options["alpha"].f if "alpha" in options else 1.0
        if scale != 1.0:
            factor = self._made("Constant", [], ["factor"])
            value = factor.attribute.add()
            value.name, value.type, value.f = "value_float", _FLOAT, scale
            made.append(factor)
            made.append(self._next(product, "Mul", [factor.output[0]]))
        return made

    def _integers(self, node: Any) -> list[Any]:
        """A product of integers and what it is scaled by, as the quantiser wrote them."""
        given = [*node.input, *[""] * (7 - len(node.input))]
        if node.op_type == "DynamicQuantizeMatMul":
            x, weight, scale, zero, bias = given[:5]
            made = [self._made("DynamicQuantizeLinear", [x], ["quantised", "scale", "zero point"])]
            q, own_scale, own_zero = made[0].output
        else:
            q, weight, own_scale, scale, own_zero, zero, bias = given[:7]
            made = []
        if not (weight and scale and own_scale):
            return [node]
        made.append(self._made("MatMulInteger", [q, weight, own_zero, zero], ["product"]))
        made.append(self._made("Cast", [made[-1].output[0]], ["as floats"]))
        kind = made[-1].attribute.add()
        kind.name, kind.type, kind.i = "to", _INT, 1
        made.append(self._made("Mul", [own_scale, scale], ["scales"]))
        made.append(self._made("Mul", [made[-2].output[0], made[-1].output[0]], ["scaled"]))
        if bias:
            made.append(self._made("Add", [made[-1].output[0], bias], ["sum"]))
        made[-1].output[0] = node.output[0]
        return made

    def _made(self, kind: str, inputs: list[str], outputs: list[str]) -> Any:
        """A node that stands for a part of one in the file."""
        found = self.onnx.NodeProto()
        self.made += 1
        found.op_type = kind
        while inputs and not inputs[-1]:
            inputs = inputs[:-1]
        found.input.extend(inputs)
        found.output.extend(f"{kind} {self.made}:{name}" for name in outputs)
        return found

    def _next(self, before: Any, kind: str, more: list[str]) -> Any:
        """A node that takes over the output of the one before it."""
        output = before.output[0]
        found = self._made(kind, ["-", *more], ["-"])
        before.output[0] = f"{found.output[0]}before"
        found.input[0], found.output[0] = before.output[0], output
        return found

    def _each(self, table: Table, field: int) -> list[Table]:
        self._visited(table.vector(field, 4)[1])
        return list(table.tables(field))

    def _visited(self, count: int) -> None:
        self.tables += count
        if self.tables > _MOST_TABLES:
            raise UncorkError(f"{self.path} is damaged: it announces more than {_MOST_TABLES:,}")

    def _counted(self, value: int, what: str) -> int:
        if value < 0:
            raise UncorkError(f"{self.path} is damaged: its {what} is {value}")
        return value


def _of_activation(attribute: str) -> bool:
    return attribute.startswith("activation") or attribute == "leaky_relu_alpha"


def _in_order(nodes: list[Any]) -> list[Any]:
    """The nodes, each after those it takes from; as they are where that cannot be."""
    maker = {name: k for k, node in enumerate(nodes) for name in node.output if name}
    waiting, after = [0] * len(nodes), [[] for _ in nodes]  # type: ignore[var-annotated]
    for k, node in enumerate(nodes):
        taken = {*node.input, *(node.doc_string.split("\0") if node.doc_string else ())}
        for before in {maker[name] for name in taken if name in maker} - {k}:
            waiting[k] += 1
            after[before].append(k)
        node.ClearField("doc_string")
    ready = [k for k, count in enumerate(waiting) if not count]
    heapq.heapify(ready)
    ordered = []
    while ready:
        k = heapq.heappop(ready)
        ordered.append(k)
        for later in after[k]:
            waiting[later] -= 1
            if not waiting[later]:
                heapq.heappush(ready, later)
    return [nodes[k] for k in ordered] if len(ordered) == len(nodes) else nodes
