"""A whole federation in one folder: creating, running, stopping and verifying it."""
