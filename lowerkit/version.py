"""The version of lowerkit, stated here and nowhere else: pyproject.toml, artifacts and the command line read it."""

__version__ = "0.2.0.dev0"
