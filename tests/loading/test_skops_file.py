"""skops files: the same head as the live estimator, and nothing of the file is instantiated."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import skops.io
from sklearn.linear_model import LogisticRegression, RidgeClassifier, SGDClassifier
from sklearn.model_selection import GridSearchCV
from sklearn.naive_bayes import MultinomialNB
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer, StandardScaler
from sklearn.svm import LinearSVC

from uncork import UncorkError
from uncork.domain import Ball
from uncork.loading import find, load

X = np.abs(np.random.default_rng(0).normal(size=(60, 5)))
MANY = np.array(["ant", "bee", "cat"])[X[:, :3].argmax(axis=1)]
TWO = (X[:, 0] > 1).astype(int)


@pytest.mark.filterwarnings("ignore:Stochastic Optimizer")
@pytest.mark.parametrize("target", [MANY, TWO, MANY.astype(object)], ids=["many", "two", "object"])
@pytest.mark.parametrize(
    "model",
    [
        LogisticRegression(),
        LinearSVC(fit_intercept=False),
        RidgeClassifier(),
        MultinomialNB(),
        MLPClassifier((4,), max_iter=3, activation="tanh"),
        make_pipeline(StandardScaler(), Normalizer(), LogisticRegression()),
        GridSearchCV(LogisticRegression(), {"C": [1.0, 2.0]}, cv=2),
    ],
    ids=lambda model: type(model).__name__,
)
def test_a_file_is_read_as_the_live_estimator_is(
    tmp_path: Path, model: Any, target: np.ndarray
) -> None:
    model.fit(X, target)
    skops.io.dump(model, tmp_path / "m.skops")
    live, stored = find(model, domain="auto"), find(tmp_path / "m.skops", domain="auto")
    assert stored.head.fingerprint == live.head.fingerprint
    assert stored.head.labels == live.head.labels
    assert stored.head.labels == tuple(str(name) for name in np.unique(target))
    assert stored.head.domain == live.head.domain
    assert stored.weight_name == live.weight_name


def test_a_pipelines_normaliser_is_the_domain(tmp_path: Path) -> None:
    model = make_pipeline(Normalizer(), LogisticRegression()).fit(X, MANY)
    skops.io.dump(model, tmp_path / "m.skops")
    assert load(tmp_path / "m.skops", domain="auto").domain == Ball(1)


def test_nothing_of_a_file_is_instantiated(tmp_path: Path) -> None:
    """A schema that names a function to call is data like any other."""
    model = LogisticRegression().fit(X, MANY)
    skops.io.dump(model, tmp_path / "m.skops")
    touched = tmp_path / "touched"

    def hostile(schema: dict[str, Any]) -> None:
        schema["content"]["content"]["C"] = {
            "__class__": "touch", "__module__": "pathlib", "__loader__": "MethodNode",
            "content": {"obj": str(touched)},
        }  # fmt: skip

    assert load(rewritten(tmp_path / "m.skops", hostile)).classes == 3
    assert not touched.exists()


def test_a_class_that_only_has_the_name_is_not_trusted(tmp_path: Path) -> None:
    skops.io.dump(LogisticRegression().fit(X, MANY), tmp_path / "m.skops")
    path = rewritten(tmp_path / "m.skops", lambda schema: schema.update(__module__="mine.models"))
    with pytest.raises(UncorkError, match=r"mine.models.LogisticRegression is not known"):
        load(path)
    assert load(path, weight="coef_").classes == 3


def test_sparse_coefficients_say_what_to_do(tmp_path: Path) -> None:
    skops.io.dump(SGDClassifier().fit(X, MANY).sparsify(), tmp_path / "m.skops")
    with pytest.raises(UncorkError, match=r"call densify\(\)"):
        load(tmp_path / "m.skops")


def test_an_estimator_that_was_never_fitted(tmp_path: Path) -> None:
    skops.io.dump(LogisticRegression(), tmp_path / "m.skops")
    with pytest.raises(UncorkError, match="not fitted"):
        load(tmp_path / "m.skops")


def rewritten(path: Path, change: Any) -> Path:
    """The file with its schema changed."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    schema = json.loads(members["schema.json"])
    change(schema)
    members["schema.json"] = json.dumps(schema).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


def laughs(schema: dict[str, Any]) -> None:
    """Lists of references to lists of references: a billion labels in a few lines."""
    nodes = []
    for level in range(30):
        inner = [{"__loader__": "CachedNode", "__id__": level - 1}] * 10
        nodes.append({"__loader__": "ListNode", "__id__": level, "content": inner})
    schema["content"]["content"]["classes_"] = {"__loader__": "CachedNode", "__id__": 29}
    schema["content"]["content"]["unused"] = {"__loader__": "ListNode", "content": nodes}


def endless(schema: dict[str, Any]) -> None:
    schema["content"]["content"]["classes_"] = {
        "__loader__": "ListNode", "__id__": 5,
        "content": [{"__loader__": "CachedNode", "__id__": 5}],
    }  # fmt: skip


def lost(schema: dict[str, Any]) -> None:
    schema["content"]["content"]["coef_"]["file"] = "../../etc/passwd"


@pytest.mark.parametrize("change", [laughs, endless, lost])
def test_hostile_schemas_end_in_one_line(tmp_path: Path, change: Any) -> None:
    skops.io.dump(LogisticRegression().fit(X, MANY), tmp_path / "m.skops")
    with pytest.raises(UncorkError) as raised:
        load(rewritten(tmp_path / "m.skops", change))
    assert "\n" not in str(raised.value)
    assert "cannot be read as" not in str(raised.value)


@pytest.mark.parametrize("text", [b"[" * 100_000, b"{", b"3", b"[]", b'{"__class__": 3}'])
def test_a_schema_that_is_none_ends_in_one_line(tmp_path: Path, text: bytes) -> None:
    with zipfile.ZipFile(tmp_path / "m.skops", "w") as archive:
        archive.writestr("schema.json", text)
    with pytest.raises(UncorkError) as raised:
        load(tmp_path / "m.skops")
    assert "\n" not in str(raised.value)
