"""Attention weights as word alignments: maps and links of words, how good these are, drawing the map."""
