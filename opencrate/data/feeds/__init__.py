"""Feeds: global batches on the device, keyed by seed, epoch and step."""
