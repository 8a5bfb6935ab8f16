"""Weights in JSON: tables of arrays by name, and the networks of brain.js."""
