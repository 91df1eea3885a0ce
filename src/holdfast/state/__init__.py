"""What the processes of an installation share, as plain Python on top of an engine's `SharedState`."""
