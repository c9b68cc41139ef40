"""How often a node does what it does, seconds."""

#: Between two looks of the node's loop.
LOOP_SECONDS = 0.1

#: Between two renewals of leases.
PULSE_SECONDS = 1.0

#: How long a lease lasts that nobody renews.
LEASE_SECONDS = 15.0
