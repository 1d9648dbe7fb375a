"""The documented mechanisms and the attacks that audit them. Nothing is here yet."""
