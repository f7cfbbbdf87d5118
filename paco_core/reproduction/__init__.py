"""The paper's ablations in small: variants of a recipe trained under several seeds, measured alike, reported."""
