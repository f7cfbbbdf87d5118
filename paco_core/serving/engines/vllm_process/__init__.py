"""What vLLM's Python runs, in vLLM's own environment, where this library is not installed."""
