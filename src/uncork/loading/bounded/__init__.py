"""Reading binary files and archives without believing their headers."""
