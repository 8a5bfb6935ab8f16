"""Shared by all tests. Being here puts this folder on the path, so that `models` is found."""
