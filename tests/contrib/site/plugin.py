"""Sets Django up before the contract is imported (`-p`), and makes its tables as `manage.py migrate` does."""

from collections.abc import Iterator

import django
import pytest
from django.core.management import call_command

django.setup()


@pytest.fixture(scope="session", autouse=True)
def tables() -> Iterator[None]:
    from django.db import connections

    call_command("migrate", verbosity=0)
    yield
    connections.close_all()
