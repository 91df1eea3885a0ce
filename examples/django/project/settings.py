"""A small Django project whose tasks Holdfast stores in the database of the project."""

import os
from pathlib import Path

BASE_DIR = Path(__file__).resolve().parent.parent

# Holdfast signs jobs with a key derived from this one, so that workers run only jobs that the project has enqueued.
SECRET_KEY = os.environ.get("SECRET_KEY", "an example needs no secret; your site does")
DEBUG = os.environ.get("DEBUG", "") == "1"
ALLOWED_HOSTS = ["localhost", "127.0.0.1"]

INSTALLED_APPS = [
    "django_tasks",  # since Django 6 tasks are part of Django: leave this line out
    "holdfast.contrib.django",
    "shop",
]
ROOT_URLCONF = "project.urls"
TIME_ZONE = "UTC"
USE_TZ = True

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": BASE_DIR / "db.sqlite3",
        # A transaction takes the write lock at its start, and waits for it there instead of failing half way.
        "OPTIONS": {"transaction_mode": "IMMEDIATE"},
    }
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

TASKS = {
    "default": {
        "BACKEND": "holdfast.contrib.django.HoldfastBackend",
        "QUEUES": ["default", "mail"],
        "OPTIONS": {"max_retries": 2, "backoff": "fixed", "backoff_base": 0.1},
    }
}

# Mails are written to files in this directory.
EMAIL_BACKEND = "django.core.mail.backends.filebased.EmailBackend"
EMAIL_FILE_PATH = BASE_DIR / "outbox"
