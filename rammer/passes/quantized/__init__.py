"""Products of quantised models: which are summed in integers, and which of these multiply bytes."""
