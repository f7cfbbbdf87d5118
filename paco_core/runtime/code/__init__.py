"""The code, files and parameters that a stage depends on, and the versions of them that ``dvc.lock`` records."""
