"""Training: loss, optimiser, checkpoints, the loop, and what is shown of it."""
