"""Rewrites of a trace before or during translation: views, axes, constants and complex numbers."""
