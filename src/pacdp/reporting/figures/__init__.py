"""The figures of reports and of the command line."""
