"""The evaluation of the papers, figure by figure, and the book that shows it."""
