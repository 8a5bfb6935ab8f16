"""Verdicts and their proofs as data, and their file."""
