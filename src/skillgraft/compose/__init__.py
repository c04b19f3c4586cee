"""Several skills in one graft: combination rules."""
