"""Real servers for tests: each started on a free port of the loopback, in a directory of its own, and stopped."""
