"""GraphTurbo (OSDI'23) on its own device, simulated: its tables beside what our plans move there."""
