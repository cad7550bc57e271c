"""Tasks: what a batch gives, a loss and metrics."""
