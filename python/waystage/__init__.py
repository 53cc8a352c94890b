"""Waystage coordinates how data moves in high-performance computing."""

__version__ = "0.1.0"
