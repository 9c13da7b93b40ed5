"""For tests of code that uses Tenantry: the real servers, started once and shared."""

from tenantry.testing.servers import TestPlatform

__all__ = ["TestPlatform"]
