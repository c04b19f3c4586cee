"""Find the region that holds a skill: `methods` is the table of ways to choose it."""
