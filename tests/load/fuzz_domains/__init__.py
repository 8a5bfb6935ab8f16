"""Random models, run on inputs that are driven towards the bounds of their claimed domains."""
