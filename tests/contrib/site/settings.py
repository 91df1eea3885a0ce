"""A Django project for the contract of the backend, on the database that `SITE_DATABASE` says, or on a file."""

import json
import os
from pathlib import Path

BASE_DIR = Path(os.environ["SITE_DIRECTORY"])
SECRET_KEY = "of the tests"
INSTALLED_APPS = ["django_tasks", "holdfast.contrib.django", "tests.contrib.site"]
USE_TZ = True
FILE = {
    "ENGINE": "django.db.backends.sqlite3",
    "NAME": BASE_DIR / "db.sqlite3",
    "OPTIONS": {"transaction_mode": "IMMEDIATE"},
}
DATABASES = {
    "default": json.loads(os.environ.get("SITE_DATABASE", "null")) or FILE,
    "file": FILE,
    "hurried": {"ENGINE": "django.db.backends.sqlite3", "NAME": BASE_DIR / "hurried.sqlite3"},
    "postgres": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": "shop",
        "USER": "ada",
        "PASSWORD": "a/b@c",
        "HOST": "db.example",
        "PORT": "6432",
        "OPTIONS": {"sslmode": "require", "pool": True},
    },
    "socket": {"ENGINE": "django.db.backends.postgresql", "NAME": "shop", "HOST": "/run/postgresql"},
    "mysql": {"ENGINE": "mysql.connector.django", "NAME": "shop", "USER": "ada", "HOST": "::1"},
    "memory": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"},
}
QUICK = {"max_retries": 1, "backoff": "none", "modules": ["tests.contrib.site.elsewhere"]}
TASKS = {
    "default": {
        "BACKEND": "holdfast.contrib.django.HoldfastBackend",
        "QUEUES": ["default", "mail"],
        "OPTIONS": {**QUICK, "table_prefix": "site_", "installation": "site"},
    },
    "other": {
        "BACKEND": "holdfast.contrib.django.HoldfastBackend",
        "QUEUES": [],
        "OPTIONS": {**QUICK, "url": "memory://"},
    },
    "at_once": {
        "BACKEND": "holdfast.contrib.django.HoldfastBackend",
        "ENQUEUE_ON_COMMIT": False,
        "OPTIONS": {**QUICK, "url": "memory://"},
    },
    "slow": {
        "BACKEND": "holdfast.contrib.django.HoldfastBackend",
        "OPTIONS": {**QUICK, "url": f"sqlite:///{BASE_DIR / 'slow.db'}", "signing_key": "of the slow ones alone " * 2},
    },
    "scheduled": {
        "BACKEND": "holdfast.contrib.django.HoldfastBackend",
        "OPTIONS": {
            **QUICK,
            "url": f"sqlite:///{BASE_DIR / 'scheduled.db'}",
            "schedules": {"tick": {"every": "1s", "job": "tests.contrib.site.tasks.add", "payload": {"args": [41, 1]}}},
        },
    },
    "here": {"BACKEND": "holdfast.contrib.django.HoldfastBackend", "OPTIONS": {**QUICK, "url": "sync://"}},
    "immediate": {"BACKEND": "django_tasks.backends.immediate.ImmediateBackend"},
}
