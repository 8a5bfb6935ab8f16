"""Models in memory instead of files."""
