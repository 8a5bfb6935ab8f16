"""Natasha's models for Russian: slovnet's taggers and navec's word vectors, in tar archives."""
