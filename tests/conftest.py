"""Settings for all tests."""

from hypothesis import settings

# No test is timed: how long an example takes says nothing about whether it is right.
settings.register_profile("pacdp", deadline=None, derandomize=True)
settings.load_profile("pacdp")
