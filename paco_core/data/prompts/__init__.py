"""Prompts: made by the embedded world, written by a chat model or imported, and made diverse."""
