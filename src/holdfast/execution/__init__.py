"""One attempt: running it, its timeout, its captured output, its outcome, and the delay before the next one."""
