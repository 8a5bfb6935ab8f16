"""The proofs of sparse probabilities as arrays of a file, and their check.

Nothing is believed: bounds are proven anew from the stored inputs and weights, and what is said of
the support has to follow from them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from uncork.auditing.certify.certifier import Certifier
from uncork.auditing.proofs.verdict import Mixture
from uncork.core.errors import UncorkError
from uncork.core.own_archive import OwnArchive
from uncork.reach.sparse.bounds import sparse_bounds
from uncork.reach.sparse.search import SparseProbability

_COLUMNS = ("lower", "upper", "epsilon", "bulk")
_INPUTS = ("inputs", "mixture_inputs")
_WHOLE = ("support", "whole")
NAMES = (
    f"sparse_({'|'.join(('class', *_COLUMNS, *_INPUTS, *_WHOLE))})",
    "sparse_weights(_of|_size|_class)?",
)


def arrays_of(found: SparseProbability) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """Arrays, and what goes into the header."""
    arrays = {"sparse_class": found.classes}
    for name in (*_COLUMNS, *_INPUTS, *_WHOLE):
        arrays[f"sparse_{name}"] = getattr(found, name)
    given = [(k, m) for k, m in enumerate(found.weights) if m is not None]
    none = np.empty(0)
    arrays |= {
        "sparse_weights_of": np.array([k for k, _ in given], dtype=np.int64),
        "sparse_weights_size": np.array([len(m.classes) for _, m in given], dtype=np.int64),
        "sparse_weights_class": np.concatenate([none, *(m.classes for _, m in given)]).astype(
            np.int64
        ),
        "sparse_weights": np.concatenate([none, *(m.weights for _, m in given)]),
    }
    return arrays, {"alpha": found.alpha, "temperature": found.temperature}


def read(arrays: OwnArchive, header: Any, classes: int, latent: int) -> SparseProbability:
    """The claims of a file, of the right form; unproven."""
    ids = arrays.ids("sparse_class", arrays.count("sparse_lower"), classes)
    count = len(ids)
    columns: dict[str, Any] = {}
    for name in (*_COLUMNS, *_INPUTS, *_WHOLE):
        shape = (count, latent) if name in _INPUTS else (count,)
        array = arrays.array(f"sparse_{name}", shape)
        if array.dtype.kind not in ("iu" if name in _WHOLE else "f"):
            raise UncorkError(f"sparse_{name} is damaged")
        columns[name] = array
    owners = arrays.ids("sparse_weights_of", None, count)
    sizes = arrays.array("sparse_weights_size", (len(owners),))
    weights = arrays.array("sparse_weights", (None,), np.float64)
    members = arrays.ids("sparse_weights_class", len(weights), classes)
    if sizes.dtype.kind not in "iu" or (sizes < 0).any() or int(sizes.sum()) != len(members):
        raise UncorkError("the weights of sparse probabilities are damaged")
    given: list[Mixture | None] = [None] * count
    ends = np.cumsum(sizes)
    for k, stop, size in zip(owners.tolist(), ends.tolist(), sizes.tolist(), strict=True):
        given[k] = Mixture(members[stop - size : stop], weights[stop - size : stop])
    return SparseProbability(
        ids, **columns, weights=given, alpha=float(header["alpha"]),
        temperature=float(header["temperature"]),
    )  # fmt: skip


def failures(certifier: Certifier, claimed: SparseProbability) -> list[tuple[int, str]]:
    """Each class with a claim that is not proven again, and which."""
    alpha, temperature = claimed.alpha, claimed.temperature
    low, _, whole = sparse_bounds(
        certifier, claimed.classes, claimed.inputs, claimed.epsilon, alpha, temperature
    )
    high = np.ones(len(low))
    for share in np.unique(claimed.bulk).tolist():
        part = np.flatnonzero(claimed.bulk == share)
        high[part] = sparse_bounds(
            certifier, claimed.classes[part], claimed.mixture_inputs[part], claimed.epsilon[part],
            alpha, temperature, share, [claimed.weights[k] for k in part.tolist()],
        )[1]  # fmt: skip
    failed = []
    for k, t in enumerate(claimed.classes.tolist()):
        # Another machine rounds sums in another order: its proof may be a hair weaker.
        if not low[k] >= claimed.lower[k] * (1 - 1e-9):
            failed.append((t, "the lower bound on its sparse probability is not proven"))
        elif not high[k] <= claimed.upper[k] * (1 + 1e-9):
            failed.append((t, "the upper bound on its sparse probability is not proven"))
        elif not _follows(claimed.support[k], low[k] > 0, high[k] <= 0):
            failed.append((t, "what is said of its support is not proven"))
        elif not _follows(claimed.whole[k], whole[k], high[k] < 1):
            failed.append((t, "what is said of its whole support is not proven"))
    return failed


def _follows(claim: int, yes: bool, no: bool) -> bool:
    return bool(yes if claim == 1 else no if claim == 0 else claim == -1)
