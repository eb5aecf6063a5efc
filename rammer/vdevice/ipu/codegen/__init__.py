"""Generate Poplar programs: vertices, compute sets, tile memory."""
