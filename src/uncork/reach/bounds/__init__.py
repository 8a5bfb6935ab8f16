"""What an input or a mixture proves of a class: bounds with no solver and no search."""
