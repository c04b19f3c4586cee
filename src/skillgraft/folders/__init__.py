"""Model folders of any size, without model code: extract, apply, remove, compare."""
