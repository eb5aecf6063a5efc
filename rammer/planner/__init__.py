"""Plan memory: arena offsets, pieces, results resident in scratch, in-place results, and work stealing."""
