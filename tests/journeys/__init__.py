"""Ten journeys of a new user: an empty folder, a terminal, and the documentation. All belong to the long suite."""
