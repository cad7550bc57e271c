"""A run or a checkpoint → tables, figures and one page that shows what every layer does."""

from .analyze import Analysis, Auditing, analyze, audit_of
from .terminal import print_audit
