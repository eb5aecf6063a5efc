"""Remove work: dead, equal, empty or neutral operators, and all that is known at compile time."""
