"""Where a data set or a policy comes from: every stage on the way up to the prompts, as ``dvc.lock`` records it."""
