"""The command line of each pipeline: options and words only. Spark is imported when a command runs, not before."""
