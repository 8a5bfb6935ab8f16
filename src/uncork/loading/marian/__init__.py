"""Marian and Nematus models."""
