"""A small Django project whose tasks are kept by Holdfast, in the database of the project."""

import os
from pathlib import Path

BASE_DIR = Path(__file__).resolve().parent.parent

# Holdfast signs its jobs with a key made of this one, so that nobody else can slip a job into the database.
SECRET_KEY = os.environ.get("SECRET_KEY", "an example needs no secret; your site does")
DEBUG = os.environ.get("DEBUG", "") == "1"
ALLOWED_HOSTS = ["localhost", "127.0.0.1"]

INSTALLED_APPS = [
    "django_tasks",  # from Django 6 on tasks are part of Django: leave this line out
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
        # A transaction takes the write lock when it begins: it waits then, instead of failing half way.
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

# Mails become files in this directory.
EMAIL_BACKEND = "django.core.mail.backends.filebased.EmailBackend"
EMAIL_FILE_PATH = BASE_DIR / "outbox"
