"""Keras models, `.keras` and `.h5`."""
