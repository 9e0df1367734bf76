"""Set-up that runs before anything is installed: only the standard library and pip."""
