"""`tunelight mcp`: what an agent can ask of sweeps."""
