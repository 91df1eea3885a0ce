"""Holdfast inside of other frameworks, each with an extra of its own."""
