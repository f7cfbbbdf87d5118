"""Paths of a DVC project, relative to its root."""


def overlap(a: str, b: str) -> bool:
    """Whether two paths are the same, or one lies in the other."""
    return a == b or a.startswith(f"{b}/") or b.startswith(f"{a}/")
