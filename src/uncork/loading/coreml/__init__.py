"""Core ML models."""
