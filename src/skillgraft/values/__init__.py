"""What a graft is: names, regions, grafts and their numbers. numpy alone."""
