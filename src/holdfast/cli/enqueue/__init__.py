"""`holdfast enqueue`: what is asked for, understood and checked, then added or only shown."""
