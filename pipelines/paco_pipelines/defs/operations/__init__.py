"""What runs beside the graph: champions, nightly measuring, the reproducibility audit."""
