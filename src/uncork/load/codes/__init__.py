"""Weights stored as codes: known by what lies beside them, dequantised as their library does."""

from uncork.load.codes.decoded import Decoded, decoded

__all__ = ["Decoded", "decoded"]
