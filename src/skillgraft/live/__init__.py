"""Grafts on live torch modules."""
