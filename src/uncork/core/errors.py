"""The one error for bad input: what was wrong, where, and what to do next."""


class UncorkError(ValueError):
    """Something the user gave cannot be used. The message is meant for them, in one line."""
