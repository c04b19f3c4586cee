"""The only room that loads models: number format, device, attention, processes, and what transformers keeps private."""
