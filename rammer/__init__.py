"""rammer: compile a neural network into a static plan of tile-sized tasks."""
