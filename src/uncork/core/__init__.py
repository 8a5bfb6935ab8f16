"""What crosses rooms: heads, what was read, errors, text and files for people, progress."""
