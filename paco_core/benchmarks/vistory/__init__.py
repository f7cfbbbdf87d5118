"""ViStoryBench (arXiv 2505.24862) on painted stories, as far as a CLIP and a judge of yes and no can measure."""
