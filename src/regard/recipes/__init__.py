"""Claims of papers, each one a value that can be run and can fail; this is the list."""

RECIPES: tuple[object, ...] = ()
