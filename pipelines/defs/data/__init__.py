"""Assets and checks of the domain ``data``."""
