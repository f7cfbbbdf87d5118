"""Assets and checks of the domain ``serving``."""
