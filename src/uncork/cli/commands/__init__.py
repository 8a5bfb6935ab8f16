"""The commands, one in each file: a function of the file's name, whose docstring is the help."""
