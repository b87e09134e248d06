"""The experiments: one folder each, with the script that makes it, its data, its picture and what it says."""
