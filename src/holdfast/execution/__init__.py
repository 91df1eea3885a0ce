"""One attempt: the runtime that makes it, its timeout and captured output, and the delay before the next one."""
