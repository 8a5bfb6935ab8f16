"""The pages of a store as a folder of files, for any web space."""
