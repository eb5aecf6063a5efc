"""Plan memory: arena offsets, pieces, results that stay in scratch, in-place results, shared work."""
