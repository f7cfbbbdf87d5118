"""What a run would need and cost, before it starts: ``paco check`` and ``paco plan``."""
