"""Write pages of docs/ from results, and format them."""
