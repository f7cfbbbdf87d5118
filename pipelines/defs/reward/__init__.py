"""Assets and checks of the domain ``reward``."""
