"""The Transformer. Knows ids and tensors; neither text nor files."""
