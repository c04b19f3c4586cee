"""The command line: one file per verb; arguments in, printing out, no logic."""
