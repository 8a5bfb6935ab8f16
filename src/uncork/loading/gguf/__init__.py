"""GGUF models."""
