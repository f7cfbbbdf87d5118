"""Files of models: where they are, how large, what licence, which precision."""
