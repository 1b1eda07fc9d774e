"""A whole federation as a folder: written, started, watched, ended and verified by commands."""
