"""What an rTask costs on a device: its own work, and what it takes to fetch operands from where they are."""
