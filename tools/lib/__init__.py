"""Readers and writers shared by the tools: numpy and gguf only."""
