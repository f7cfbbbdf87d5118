"""The policies and the paper's ablations in small: trained under several seeds, measured alike, reported."""
