"""Describes a job: its options, the immutable definition, and the fluent builder."""

from holdfast.definition.builder import JobBuilder
from holdfast.definition.definition import JobDefinition, JobOptions, definition_of

__all__ = ["JobBuilder", "JobDefinition", "JobOptions", "definition_of"]
