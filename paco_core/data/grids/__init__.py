"""Grids of pictures, painted by the text-to-image model, in shards."""
