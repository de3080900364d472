"""Generated from proto/ by `make gen`. Do not edit."""
