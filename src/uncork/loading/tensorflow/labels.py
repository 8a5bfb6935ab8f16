"""What a TensorFlow model's classes are called: a list of labels in the model's folder."""

from __future__ import annotations

import re
from pathlib import Path

from uncork.core.errors import UncorkError
from uncork.loading.contents import Vocabulary
from uncork.loading.vocabulary.labels import read_labels

_NAMES = re.compile(
    r"(.*[-_])?(labels?|classes|class[-_]names|categories|label[-_]?map|metadata)\.(txt|csv|json)",
    re.IGNORECASE,
)


def labels_beside(folder: Path, classes: int) -> Vocabulary:
    """The one file of labels that lies in the folder, or among a SavedModel's assets."""
    places = [one for one in (folder, folder / "assets", folder / "assets.extra") if one.is_dir()]
    files = [
        path for place in places for path in sorted(place.iterdir())
        if _NAMES.fullmatch(path.name) and path.is_file()
    ]  # fmt: skip
    found, refused = [], []
    for path in files:
        try:
            found.append(read_labels(path, classes))
        except UncorkError as error:
            refused.append(str(error))
    if len({one.labels for one in found}) > 1:
        return Vocabulary(None, f"{len(found)} lists of {classes} labels, which differ")
    return found[0] if found else Vocabulary(None, "; ".join(refused))
