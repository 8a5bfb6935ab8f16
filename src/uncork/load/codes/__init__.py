"""Weights stored as codes: recognised by what lies beside them, and dequantised as their library does."""

from uncork.load.codes.decoded import decoded, with_codes

__all__ = ["decoded", "with_codes"]
