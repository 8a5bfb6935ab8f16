"""The highest probability of a class."""
