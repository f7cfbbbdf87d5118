"""Tracked runs side by side: figures that differ, curves over common axes, pictures of the same step."""
