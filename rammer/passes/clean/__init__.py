"""Less to compute: what is dead, equal, empty, known at compile time, or changes nothing."""
