"""Products of recurrent networks: by gates, of many steps at once, or inside of a cell."""
