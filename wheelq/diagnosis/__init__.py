"""What a server's own words mean for the jobs kept in it: from facts to findings, in plain language.

    Inspector.facts() ──▶ Facts ──diagnose──▶ [Finding, …] ──▶ wheelq doctor

Pure: nothing is asked here, so every finding can be tested with facts made by hand. A *problem* means that jobs can
be lost, or do not run, in normal operation: it must be mended. A *warning* is a choice that the operator should have
made on purpose. *ok* tells what was looked at.

facts        what is known, and what a finding is
server       the server itself
durability   what can be lost
jobs         who looks after the jobs
"""

from __future__ import annotations

from wheelq.diagnosis.durability import durability_findings
from wheelq.diagnosis.facts import Finding, JobFacts, Level, ServerFacts
from wheelq.diagnosis.jobs import job_findings
from wheelq.diagnosis.server import load_findings, server_findings

__all__ = ["Finding", "JobFacts", "Level", "ServerFacts", "diagnose", "diagnose_server"]


def diagnose(server: ServerFacts, jobs: JobFacts) -> list[Finding]:
    """Every finding, in the order a person should read them."""
    return [*diagnose_server(server), *job_findings(jobs)]


def diagnose_server(facts: ServerFacts) -> list[Finding]:
    """What concerns the server alone, whoever uses it."""
    return [*server_findings(facts), *durability_findings(facts), *load_findings(facts)]
