"""Prompts of the embedded world, of a chat model or of a file, and their selection for diversity."""
