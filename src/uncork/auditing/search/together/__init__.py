"""Proposers that decide many classes in one piece of work: by what classes have in common."""
