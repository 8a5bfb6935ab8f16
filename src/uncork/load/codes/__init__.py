"""Weights stored as codes: known by what lies beside them, dequantised as their library does."""

from uncork.load.codes.decoded import decoded, with_codes

__all__ = ["decoded", "with_codes"]
