"""sweep: many models audited one after the other or side by side, into one store."""

from uncork.sweep.manifest import Task, read_manifest
from uncork.sweep.run import Outcome, sweep

__all__ = ["Outcome", "Task", "read_manifest", "sweep"]
