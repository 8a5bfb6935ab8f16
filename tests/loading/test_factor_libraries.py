"""What is read of recommenders and databases, beside what these libraries themselves compute.

None of them is needed otherwise, and what is not installed is passed over:

    pip install lightfm-next scikit-surprise qdrant-client recbole
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import uncork
from uncork import load_items

RNG = np.random.default_rng(0)
USERS, ITEMS = RNG.normal(size=(60, 3)), RNG.normal(size=(40, 3))
LIKED = USERS @ ITEMS.T > 0.8


def same_order(items: uncork.Items, users: np.ndarray, theirs: np.ndarray, off: float) -> None:
    """Scores may differ by a number of each user's own, which changes no order."""
    ours = users.astype(np.float64) @ np.asarray(items.vectors, dtype=np.float64).T
    ours += 0 if items.bias is None else np.asarray(items.bias, dtype=np.float64)
    apart = theirs - ours
    assert np.abs(apart - apart.mean(axis=1, keepdims=True)).max() < off


@pytest.mark.filterwarnings("ignore")
def test_lightfm(tmp_path: Path) -> None:
    lightfm = pytest.importorskip("lightfm")
    from scipy import sparse

    model = lightfm.LightFM(no_components=6, loss="warp", random_state=0)
    model.fit(sparse.coo_matrix(LIKED.astype(np.float32)), epochs=5)
    biases, rows = model.get_item_representations(None)
    _, users = model.get_user_representations(None)
    np.savez(tmp_path / "m.npz", item_embeddings=rows, item_biases=biases, user_embeddings=users)
    theirs = np.array([model.predict(u, np.arange(40)) for u in range(60)])
    same_order(load_items(tmp_path / "m.npz"), users, theirs, 1e-5)


@pytest.mark.filterwarnings("ignore")
def test_surprise(tmp_path: Path) -> None:
    surprise = pytest.importorskip("surprise")
    pandas = pytest.importorskip("pandas")

    rated = [(u, i, float(np.clip(USERS[u] @ ITEMS[i] + 3, 1, 5)))
             for u in range(60) for i in range(40) if (u + i) % 2]  # fmt: skip
    frame = pandas.DataFrame(rated, columns=["user", "item", "rating"])
    data = surprise.Dataset.load_from_df(frame, surprise.Reader(rating_scale=(1, 5)))
    whole = data.build_full_trainset()
    algo = surprise.SVD(n_factors=6, random_state=0)
    algo.fit(whole)
    np.savez(tmp_path / "m.npz", qi=algo.qi, bi=algo.bi, pu=algo.pu)
    theirs = np.array([[algo.estimate(u, i) for i in range(40)] for u in range(60)])
    same_order(load_items(tmp_path / "m.npz"), algo.pu, theirs, 1e-12)
    surprise.dump.dump(str(tmp_path / "m.dump"), algo=algo)
    with pytest.raises(uncork.UncorkError, match="a pickled model of surprise"):
        load_items(tmp_path / "m.dump")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("distance", "metric"), [("DOT", "inner"), ("COSINE", "cosine"), ("EUCLID", "euclidean")]
)
def test_a_scroll_of_qdrant(tmp_path: Path, distance: str, metric: str) -> None:
    qdrant = pytest.importorskip("qdrant_client")
    models = qdrant.models
    client = qdrant.QdrantClient(":memory:")
    kind = models.VectorParams(size=3, distance=getattr(models.Distance, distance))
    client.create_collection("items", vectors_config=kind)
    client.upsert("items", [models.PointStruct(id=100 + i, vector=row.tolist())
                            for i, row in enumerate(ITEMS)])  # fmt: skip
    points, _ = client.scroll("items", limit=1000, with_vectors=True)
    lines = "\n".join(point.model_dump_json() for point in points)
    (tmp_path / "points.jsonl").write_text(lines, encoding="utf-8")
    answer = {"result": {"points": [p.model_dump() for p in points]}, "status": "ok"}
    (tmp_path / "points.json").write_text(json.dumps(answer), encoding="utf-8")
    for name in ("points.jsonl", "points.json"):
        items = load_items(tmp_path / name, metric=metric)
        assert items.labels == tuple(str(100 + i) for i in range(40))
        rows = np.asarray(items.vectors)
        for query in USERS[:20]:
            scores = rows @ query
            if metric == "cosine":
                scores = scores / np.linalg.norm(rows, axis=1)
            elif metric == "euclidean":
                scores = -np.linalg.norm(rows - query, axis=1)
            first = client.query_points("items", query=query.tolist(), limit=1).points[0].id
            assert items.labels[int(np.argmax(scores))] == str(first)


@pytest.mark.filterwarnings("ignore")
def test_recbole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # It asks NumPy for names that went with version 2.
    old = {"unicode_": np.str_, "float_": np.float64, "complex_": np.complex128, "bool8": np.bool_,
           "object_": np.object_, "string_": np.bytes_, "long": np.int64}  # fmt: skip
    for name, kind in old.items():
        if name not in np.__dict__:
            monkeypatch.setattr(np, name, kind, raising=False)
    pytest.importorskip("recbole")
    torch = pytest.importorskip("torch")
    from recbole.config import Config
    from recbole.data import create_dataset, data_preparation
    from recbole.data.interaction import Interaction
    from recbole.utils import get_model, get_trainer, init_seed

    (tmp_path / "toy").mkdir()
    lines = [f"u{u}\ti{i}" for u, i in np.argwhere(LIKED).tolist()]
    text = "\n".join(["user_id:token\titem_id:token", *lines])
    (tmp_path / "toy" / "toy.inter").write_text(text, encoding="utf-8")
    settings: dict[str, Any] = {
        "data_path": str(tmp_path), "checkpoint_dir": str(tmp_path), "epochs": 2, "use_gpu": False,
        "embedding_size": 6, "show_progress": False, "train_batch_size": 256, "state": "ERROR",
        "load_col": {"inter": ["user_id", "item_id"]},
        "eval_args": {"split": {"RS": [0.8, 0.1, 0.1]}, "order": "RO", "mode": "full"},
    }  # fmt: skip
    config = Config(model="BPR", dataset="toy", config_dict=settings)
    init_seed(0, True)
    dataset = create_dataset(config)
    train, valid, _ = data_preparation(config, dataset)
    model = get_model("BPR")(config, train._dataset)
    trainer = get_trainer(config["MODEL_TYPE"], "BPR")(config, model)
    trainer.fit(train, valid, verbose=False, saved=True, show_progress=False)
    saved = trainer.saved_model_file
    model.load_state_dict(torch.load(saved, weights_only=False)["state_dict"])
    users = torch.arange(1, dataset.user_num)
    with torch.no_grad():
        theirs = model.full_sort_predict(Interaction({"user_id": users})).view(len(users), -1)
    items = load_items(saved)
    assert items.reading is not None
    assert items.reading.doubts == ()
    assert items.labels == tuple(str(i) for i in range(1, dataset.item_num))
    factors = model.user_embedding.weight.detach().numpy()[1:]
    same_order(items, factors, theirs.numpy()[:, 1:], 1e-6)
