"""How fast and how exactly a workbench answers what pins would cost."""
