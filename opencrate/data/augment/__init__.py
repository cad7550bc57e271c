"""Crops, transforms and RandAugment, picture by picture or for whole batches on the device."""
