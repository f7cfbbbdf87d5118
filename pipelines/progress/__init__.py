"""The page that fills while a run of the graph is under way."""
