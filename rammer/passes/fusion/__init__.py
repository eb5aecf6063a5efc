"""Several operators as one, and the expression of what they compute together."""
