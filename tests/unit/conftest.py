"""What the unit tests share: Hypothesis looks for wrong answers, not for slow ones, which may be the machine's."""

from hypothesis import settings

settings.register_profile("unit", deadline=None)
settings.load_profile("unit")
