"""Names of other programs: what differs between their versions, and what their users write out of habit."""
