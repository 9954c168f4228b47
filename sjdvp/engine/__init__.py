"""The engine: seats jobs in rows, steps all rows through one fixed-shape decoding step, turns finished rows into pictures."""
