"""The engine in the memory of one process, and its variant that runs jobs as they are enqueued."""
