"""What finished run folders say: figures, a table, a page. Reads folders only; imports no torch and no numpy."""
