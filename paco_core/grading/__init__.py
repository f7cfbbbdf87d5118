"""Comparison of adapters for one base model: equal prompts and noise, measures, paired intervals, a page."""
