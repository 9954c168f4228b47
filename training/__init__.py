"""How the embedded model was made; not part of the wheel."""
