"""Find the region that holds a skill: `methods` is the table of ways to choose it, `localize` works on any torch model."""

from skillgraft.localize.any_model import localize as localize
