"""Definitions of the project, a folder a domain."""
