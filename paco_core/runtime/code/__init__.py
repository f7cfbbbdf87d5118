"""Which code, files and parameters a stage is made of, and what ``dvc.lock`` recorded of them."""
