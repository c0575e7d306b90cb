"""How the workers of a gang find each other and form a process group."""
