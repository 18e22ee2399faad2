"""Timings and their record: steps, engines in process, servers, and the report of them."""
