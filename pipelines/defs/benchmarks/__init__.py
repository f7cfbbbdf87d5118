"""Assets and checks of the domain ``benchmarks``."""
