"""Other programs' worlds: what a graft becomes for them."""
