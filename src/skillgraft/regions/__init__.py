"""Find the region that holds a skill: `methods` is the table, `localize` works on folders, `localize_live` on models."""
