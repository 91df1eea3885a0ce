"""Data that the processes of an installation share, on top of an engine's `SharedState`."""
