"""The Django application. `manage.py migrate` creates the tables of jobs that are stored in Django's databases."""

from typing import Any

from django.apps import AppConfig
from django.db.models.signals import post_migrate


class HoldfastConfig(AppConfig):
    name = "holdfast.contrib.django"
    label = "holdfast"
    verbose_name = "Holdfast"

    def ready(self) -> None:
        post_migrate.connect(_create_tables, sender=self, dispatch_uid="holdfast")


def _create_tables(*, using: str, **_: Any) -> None:
    from holdfast.contrib.django.backend import backends

    for backend in backends():
        if backend.place.database == using:
            backend.app.create_schema()
