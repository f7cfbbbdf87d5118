"""``params.yaml``: its sections as typed models, and profiles of it."""
