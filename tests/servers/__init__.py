"""Real servers for tests: each is started on a free loopback port, in its own directory, and stopped afterwards."""
