"""Code that runs in vLLM's environment, in which this library is not installed."""
