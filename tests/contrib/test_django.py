"""The backend of Django's tasks keeps the contract of `site/contract.py`, in a process where Django is set up."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ..servers.places import Servers

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
def test_django_tasks_are_kept_and_run(engine: str, servers: Servers, tmp_path: Path) -> None:
    database: dict[str, object] | None = None
    if engine == "postgres":
        where = {"HOST": "127.0.0.1", "PORT": servers.running(engine).port, "USER": "postgres", "NAME": "postgres"}
        database = {"ENGINE": "django.db.backends.postgresql", **where}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.contrib.site.plugin", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "tests/contrib/site/contract.py"],
        cwd=ROOT,
        env={
            **{name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST_", "PYTEST_"))},
            "DJANGO_SETTINGS_MODULE": "tests.contrib.site.settings",
            "SITE_DATABASE": json.dumps(database),
            "SITE_DIRECTORY": str(tmp_path),
            "HOME": str(tmp_path),
        },
        capture_output=True,
        encoding="utf-8",
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
