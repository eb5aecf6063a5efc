"""Choose how products of quantised models are computed: which sum in integers, and which of these multiply bytes."""
