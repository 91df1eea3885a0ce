"""Schedules: when they are due, and what they enqueue."""
