"""Side-by-side runs: one page of results each, see README.md and RESULTS.md."""
