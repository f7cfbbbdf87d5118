"""Services around a run: its project, its tracking, launchers, provenance, and the redaction of secrets."""
