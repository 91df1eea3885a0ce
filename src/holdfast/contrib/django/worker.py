"""The applications that workers run: `holdfast.contrib.django.worker:default` is that of TASKS["default"].

Worker processes set Django up themselves. They need DJANGO_SETTINGS_MODULE and the project on their Python path.
"""

from typing import TYPE_CHECKING, Any

import django
from django.apps import apps
from django.core.exceptions import ImproperlyConfigured

from holdfast.errors import ConfigError

if TYPE_CHECKING:
    from holdfast.app import Holdfast


def application(alias: str) -> "Holdfast":
    """The application of a task backend, with all tasks of the project."""
    try:
        if not apps.ready:
            django.setup()
        from holdfast.contrib.django.backend import backend_of

        return backend_of(alias).worker_app()
    except ImproperlyConfigured as problem:
        raise ConfigError(str(problem)) from problem


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return application(name)
