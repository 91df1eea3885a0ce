"""`holdfast worker`: start a worker here; list and stop workers on any host."""
