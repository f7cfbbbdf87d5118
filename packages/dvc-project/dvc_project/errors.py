"""Errors of files that people and programs wrote."""


class DataError(ValueError):
    """Data on disk is missing or malformed; the text names the file, the line or id, and the remedy."""


class DvcProjectError(DataError):
    """A DVC project that cannot be read; the message names the file, the stage and the key."""


class MergeConflictError(DvcProjectError):
    """A file contains the marks of a merge conflict; the message names the line and how to resolve it."""
