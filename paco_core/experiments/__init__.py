"""Many trainings beside one another: sweeps, the reproduction of the paper's tables, comparisons."""
