"""Models of other programs: taken in, and given out."""
