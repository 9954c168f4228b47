"""The engine: sequences jobs in rows, steps all rows through one fixed-shape decoding step, turns finished rows into images."""
