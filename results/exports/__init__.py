"""Exports of published classes, trained on two ranks."""
