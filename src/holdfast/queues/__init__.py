"""Transport: the contract every engine obeys, envelopes and signatures, and opening an engine by its URL."""
