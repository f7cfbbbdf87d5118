"""Run by the interpreter of another environment, one request a line; nothing of paco is imported here."""
