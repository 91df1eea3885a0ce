"""Where jobs run: executor children, what is said to them, and the guardian beside each."""
