"""The code location of this project."""
