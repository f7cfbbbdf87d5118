"""A DVC project read from its files, without DVC: stages, records in ``dvc.lock``, md5s, what is stale; a runner."""
