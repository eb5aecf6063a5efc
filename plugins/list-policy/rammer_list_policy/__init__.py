"""Schedule rTasks as a plugin of rammer. Known as: list scheduling, HEFT without communication costs."""
