"""Decoding: search over ids, and lines translated to lines."""
