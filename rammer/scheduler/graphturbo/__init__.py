"""GraphTurbo: operators cut into instances, in an order that keeps what lies between them near. Paper: OSDI'23."""
