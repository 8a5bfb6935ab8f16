"""Weights stored as codes: known by what lies beside them, dequantised as their library does."""
