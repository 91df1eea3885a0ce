"""`holdfast worker`: starting one here, and looking at and stopping those that run anywhere."""
