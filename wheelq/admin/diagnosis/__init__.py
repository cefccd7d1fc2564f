"""Turns facts about a server and its jobs into findings in plain language.

    Inspector.facts() ──▶ Facts ──diagnose──▶ [Finding, …] ──▶ wheelq doctor

Pure: nothing here talks to a server, so every finding can be tested with facts made by hand. A *problem* means that
jobs can be lost, or do not run, in normal operation: it must be fixed. A *warning* is a choice that the operator should
have made on purpose. *ok* shows that something was checked.

facts        facts and findings
findings     about the server, and about jobs, schedulers, workers and API keys
"""

from __future__ import annotations

from wheelq.admin.diagnosis.facts import Finding, JobFacts, Level, ServerFacts
from wheelq.admin.diagnosis.findings import durability_findings, job_findings, load_findings, server_findings

__all__ = ["Finding", "JobFacts", "Level", "ServerFacts", "diagnose", "diagnose_server"]


def diagnose(server: ServerFacts, jobs: JobFacts) -> list[Finding]:
    """Returns every finding, in reading order."""
    return [*diagnose_server(server), *job_findings(jobs)]


def diagnose_server(facts: ServerFacts) -> list[Finding]:
    """Returns the findings about the server alone."""
    return [*server_findings(facts), *durability_findings(facts), *load_findings(facts)]
