"""Public Python API: ``from paco_core import Judge, Painter``. The verbs of ``paco`` call the same functions."""
