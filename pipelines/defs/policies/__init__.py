"""Assets and checks of the domain ``policies``."""
