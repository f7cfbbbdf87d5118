"""A DVC project read from its files, without DVC: stages, what ``dvc.lock`` records, md5s, and what is stale."""
