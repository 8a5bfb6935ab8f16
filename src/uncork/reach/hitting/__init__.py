"""Which few classes must be left out for a class to be first: the search for best ranks."""
