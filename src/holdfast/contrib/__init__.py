"""Integrations with other frameworks, each with its own extra."""
