"""Arrays of NumPy, and models kept in them."""
