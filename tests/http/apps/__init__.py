"""The same small service in several frameworks, for real servers and in process."""
