"""From a module to a trace in which nothing is changed in place: the export, and what it needs of Python."""
