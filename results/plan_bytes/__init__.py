"""Bytes of every search and every placement set, for every family of models and several numbers of workers."""
