"""The laws, one file per verb group; `holdfast.testing.conformance` puts them together."""
