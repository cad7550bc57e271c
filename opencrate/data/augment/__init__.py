"""Crops, transforms and RandAugment, for one picture at a time or for batches on the device."""
