"""Split operators into instances, ordered so that intermediate tensors stay resident. Paper: GraphTurbo, OSDI'23."""
