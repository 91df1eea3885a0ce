"""Classic bugs, each planted in an engine that is otherwise right, and the clause that must not let it pass."""
