"""fastText models."""
