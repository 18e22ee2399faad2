"""Requests, packing, the step and its one synchronisation."""
