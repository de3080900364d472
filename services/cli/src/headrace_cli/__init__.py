"""Headrace's command line: serve, keys, chat, doctor, bench."""
