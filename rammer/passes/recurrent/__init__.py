"""Restructure products of recurrent networks: by gates, for many steps at once, or inside of a cell."""
