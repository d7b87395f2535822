"""Settings of the property tests: no example is judged by how long it took."""

from hypothesis import settings

settings.register_profile("specwatch", deadline=None)
settings.load_profile("specwatch")
