"""Chat models over HTTP: requests, retries, and a journal of what was answered."""
