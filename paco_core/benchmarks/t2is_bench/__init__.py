"""T2IS-Bench (arXiv 2506.23275): aesthetics, alignment and consistency of sets of pictures, and their average."""
