"""The proposers: fast, clever or wrong. What they find counts once it is certified."""
