"""What the layers of a network do: the audit of their half-steps, what they attend to, and pictures of both."""
