"""The experiments of the papers' figures and tables."""
