"""Bytes on disk: atomic writing, the safetensors container, graft files."""
