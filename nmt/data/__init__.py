"""Data: corpora to token caches to batches. No torch here: a batch is NumPy arrays."""
