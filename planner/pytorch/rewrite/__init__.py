"""Rewrites of a trace before or during translation: views, axes and constants."""
