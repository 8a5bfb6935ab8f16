"""The experiments are scripts: what one imports of another lies beside it."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "experiments"))
