"""Reports on finished run folders: metrics, a table, a page. Imports no torch and no numpy."""
