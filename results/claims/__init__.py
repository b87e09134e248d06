"""Every checkable sentence of the papers of Tofu, SoyBean and DistPar, and what we get."""
