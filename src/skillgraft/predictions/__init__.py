"""What a model answered about every row: the type, and how a model is run over rows."""
