"""What every test gets: hypothesis without deadlines, its failing examples printed so that they can be repeated."""

from hypothesis import settings

settings.register_profile("notwice", deadline=None, print_blob=True)
settings.load_profile("notwice")
