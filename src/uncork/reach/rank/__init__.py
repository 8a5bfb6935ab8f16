"""The best rank of a class."""
