"""skops files: scikit-learn models read from their schema, without making any object of them."""

from __future__ import annotations

import functools
import json
import zipfile
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from uncork.core.errors import UncorkError
from uncork.core.text import printable
from uncork.loading.bounded.archive import read_member
from uncork.loading.contents import Contents, Tensor
from uncork.loading.numpy.file import read_npz
from uncork.loading.sklearn.head import Estimator, contents_of

_SCHEMA = "schema.json"
_MOST_SCHEMA = 64 << 20
_MOST_DEPTH = 60
_MOST_NODES = 1 << 22


def read_skops(path: Path) -> Contents:
    """The estimator that a skops file describes. Its schema is read as data: no code runs."""
    with zipfile.ZipFile(path) as archive:
        info = archive.getinfo(_SCHEMA)
        if info.file_size > _MOST_SCHEMA:
            raise UncorkError(f"{path}: {_SCHEMA} has {info.file_size} bytes: too many for a model")
        arrays = any(name.endswith(".npy") for name in archive.namelist())
        try:
            schema = json.loads(read_member(archive, info))
        except (ValueError, RecursionError) as error:
            raise UncorkError(f"{path}: {_SCHEMA} is not valid JSON: {error}") from error
    file = _File(path, read_npz(path).tensors if arrays else {}, schema)
    estimator = file.value("model", schema, 0)
    if not isinstance(estimator, Estimator):
        raise UncorkError(
            f"{path} holds no scikit-learn estimator but {str(_field(schema, '__class__'))[:80]!r}"
        )
    return contents_of(path, "skops", estimator)


class _File:
    """A skops file: the arrays in it by name, and the nodes of its schema by number."""

    def __init__(self, path: Path, arrays: Any, schema: Any) -> None:
        self.path = path
        self.arrays = arrays
        self.visits = 0
        self.seen: dict[int, Any] = {}
        todo = [schema]
        while todo:  # an object that is met again is kept as a reference to its number
            node = todo.pop()
            if isinstance(node, dict):
                number = node.get("__id__")
                if isinstance(number, int) and node.get("__loader__") != "CachedNode":
                    self.seen.setdefault(number, node)
                todo += node.values()
            elif isinstance(node, list):
                todo += node

    def value(self, name: str, node: Any, depth: int) -> Any:
        """A node as `Estimator.get` hands values on; None for what no head is made of."""
        # References can make a short schema stand for an endless one, so visits are counted.
        self.visits += 1
        if depth > _MOST_DEPTH or self.visits > _MOST_NODES:
            raise UncorkError(f"{self.path}: {_SCHEMA} is nested too deep, or refers to itself")
        loader, content = _field(node, "__loader__"), _field(node, "content")
        if loader == "CachedNode":
            target = self.seen.get(_field(node, "__id__"))
            return None if target is None else self.value(name, target, depth + 1)
        if loader == "JsonNode":
            return self._json(content)
        if loader in ("ListNode", "TupleNode") and isinstance(content, list):
            return [self.value(name, item, depth + 1) for item in content]
        if loader in ("NdArrayNode", "MaskedArrayNode"):
            return self._array(name, node, depth)
        if loader == "SparseMatrixNode":
            return Tensor(name, (), "sparse", functools.partial(self._refuse_sparse, name))
        if isinstance(_field(content, "content"), dict) and isinstance(
            _field(node, "__class__"), str
        ):
            return self._estimator(node, content["content"], depth)
        return None

    def _estimator(self, node: Any, attributes: dict[str, Any], depth: int) -> Estimator:
        # Only a class of scikit-learn is known to predict as its name says.
        ours = str(_field(node, "__module__")).split(".")[0] == "sklearn"
        kind = node["__class__"] if ours else f"{_field(node, '__module__')}.{node['__class__']}"

        def get(name: str) -> Any:
            return self.value(name, attributes.get(name), depth + 1)

        names = tuple(name for name in attributes if name.endswith("_") and name[:1] != "_")
        return Estimator(printable(kind)[:80], get, names)

    def _array(self, name: str, node: Any, depth: int) -> Any:
        if _field(node, "type") == "numpy":
            stem = str(PurePosixPath(str(_field(node, "file"))).with_suffix(""))
            found = self.arrays.get(stem)
            if found is None:
                raise UncorkError(f"{self.path}: {name} is kept in {stem[:80]!r}, which is missing")
            return found
        # Arrays of Python objects, such as labels of mixed lengths, are kept as lists of nodes.
        content = _field(node, "content")
        if not isinstance(content, list):
            return None
        return [self.value(name, item, depth + 1) for item in content]

    def _json(self, content: Any) -> Any:
        try:
            return json.loads(content) if isinstance(content, str) else None
        except (ValueError, RecursionError):
            return None

    def _refuse_sparse(self, name: str) -> np.ndarray:
        raise UncorkError(
            f"{self.path}: {name} is a sparse matrix: call densify() on the estimator and save it "
            "again"
        )


def _field(node: Any, key: str) -> Any:
    return node.get(key) if isinstance(node, dict) else None
