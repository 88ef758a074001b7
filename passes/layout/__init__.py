"""Passes that decide how tensors are stored: channels-last, and transposes that meet and cancel."""
