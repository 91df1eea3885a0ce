"""Holdfast as a backend for Django's tasks: `django.tasks` since Django 6, its backport `django-tasks` before.

INSTALLED_APPS = [..., "holdfast.contrib.django"]
TASKS = {"default": {"BACKEND": "holdfast.contrib.django.HoldfastBackend"}}
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.contrib.django.backend import HoldfastBackend, HoldfastTask

__all__ = ["HoldfastBackend", "HoldfastTask"]


# Loaded lazily: Django imports this package as an application before its settings can be used.
def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from holdfast.contrib.django import backend

    return getattr(backend, name)
