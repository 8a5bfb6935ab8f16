"""save: a head written back into a copy of the file it came from, everything else untouched."""

from uncork.save.write import FORMATS, check_format, write_head

__all__ = ["FORMATS", "check_format", "write_head"]
