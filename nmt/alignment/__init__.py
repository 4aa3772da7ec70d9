"""Attention weights as word alignments: merging pieces into words, drawing the map."""
