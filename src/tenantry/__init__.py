"""Tenantry: event pipelines for many tenants on one platform."""

from typing import TYPE_CHECKING

__all__ = ["Context", "Event", "Tenantry"]

if TYPE_CHECKING:
    from tenantry.application import Context, Event, Tenantry
else:

    def __getattr__(name: str) -> object:
        """What is exported is imported when it is asked for: whoever does without it is not to wait for it."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from tenantry import application

        return getattr(application, name)
