"""What precedes a head, and the domain that follows from it: shared by formats."""
