"""The executor children that run jobs, the protocol they speak with the worker, and the guardian of each."""
