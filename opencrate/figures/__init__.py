"""Figures: functions of values, which draw with matplotlib."""
