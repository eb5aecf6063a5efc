"""Commands that look at plans and compare them."""
