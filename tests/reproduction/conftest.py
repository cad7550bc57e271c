from ..threads import one_thread  # noqa: F401
