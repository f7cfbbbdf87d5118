"""Records of prompts, edits and their parts, and the readers of their files."""
