"""Provenance of a data set or a policy: all stages from the prompts to it, as ``dvc.lock`` records them."""
