"""Requirements and cost of a run before it starts: ``paco check`` and ``paco plan``."""
