"""Describing a job: the fluent builder, and the immutable definition it makes."""

from holdfast.definition.builder import JobBuilder
from holdfast.definition.definition import JobDefinition

__all__ = ["JobBuilder", "JobDefinition"]
