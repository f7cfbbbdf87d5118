"""Public formats to read and write: PaCo-Dataset, ConsistencyRank-Bench, plain Parquet, and the data-set card.

Inside a project, there is one format: tables that refer to panels, and images in tar shards. Imported data become a
folder in this format (:mod:`.imported`), so no other code depends on their source.
"""
