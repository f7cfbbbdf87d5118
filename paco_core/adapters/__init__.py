"""LoRA adapters: read from a folder, a file or a hub in the layouts that are in use, and put on a model whole."""
