"""For tests of code that uses Tenantry: handlers without a broker, and the real servers, started once and shared."""

from tenantry.testing.outcome import Letter, Outcome, Outcomes
from tenantry.testing.rehearsal import Rehearsal
from tenantry.testing.servers import TestPlatform
from tenantry.testing.stage import Stage, running

__all__ = ["Letter", "Outcome", "Outcomes", "Rehearsal", "Stage", "TestPlatform", "running"]
