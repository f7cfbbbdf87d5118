"""Public formats, written and read: PaCo-Dataset, ConsistencyRank-Bench, plain Parquet, and the data-set card.

Inside the project there is one layout: tables that name panels, and pictures in tar shards. What is imported
becomes a folder in that layout (:mod:`.imported`); nothing else needs to know where it came from.
"""
