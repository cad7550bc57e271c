"""Datasets: picture number i and its class."""
