"""Settings: one table of keys, read from flags, environment, file and defaults, in that order.

The file is `holdfast.toml`, or `[tool.holdfast]` in `pyproject.toml`, in the nearest directory upward that has one;
outside any project it is the user's own. Keys are written with dashes or underscores.
"""

from holdfast.config.keys import KEYS, Applies, Key, Settings, key_named
from holdfast.config.kinds import as_seconds, check_value
from holdfast.config.project import Project, find_project, user_project
from holdfast.config.reading import Found, Origin, Place, Problem, Reading, load_settings, read_settings
from holdfast.config.trust import PROJECT_VARIABLE

__all__ = [
    "KEYS",
    "PROJECT_VARIABLE",
    "Applies",
    "Found",
    "Key",
    "Origin",
    "Place",
    "Problem",
    "Project",
    "Reading",
    "Settings",
    "as_seconds",
    "check_value",
    "find_project",
    "key_named",
    "load_settings",
    "read_settings",
    "user_project",
]
