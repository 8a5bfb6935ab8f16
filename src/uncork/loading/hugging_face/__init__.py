"""Hugging Face models: folders, hub ids, and where each architecture keeps its head."""
