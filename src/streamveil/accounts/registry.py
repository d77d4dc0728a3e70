"""A deployment as an entry of tier 3 for the public registry of deployments of OpenDP.

Unit, budget, mechanisms, bounds and versions come from the charges of a ledger; the caller gives
what only the publisher knows (`Publisher`). The entry is a draft: people review it. Nothing in it
comes from rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from streamveil.accounts.deployment import ACCOUNTING, SPANS, number, span_of
from streamveil.accounts.ledger import Charge, Ledger
from streamveil.core.accounting import Budget
from streamveil.core.accounting.guarantee import rounded_up
from streamveil.errors import PlanError, require_one_of

TIER, STATUS = 3, "Draft"
SECTORS = ("Technology", "Healthcare", "Education", "Government", "Energy", "Finance")
UNPROTECTED = (
    "The query with its bounds and budget, the calendar of windows and releases, their number, and"
    " groups that were declared public.",
    "Sizes and times of files and of processes on the host are seen by its operator alone.",
)
MECHANISMS = (
    "Each person's rows are bounded, sums are exact integers, and Gaussian noise is drawn for every"
    " release by streamveil (Python): continual counters with correlated noise where there are many"
    " releases. Noise is sampled exactly and rounded about its centre, from a keyed pseudo-random"
    " function at addresses that are used once: no float reaches a total, and a restart repeats the"
    " same draws.",
    "Releases follow a public clock, so their times say nothing; time, power and memory traffic of"
    " the running machine are not covered. Bad rows are counted for the operator and never raise.",
)
ACTORS = (
    "The host that runs the job, and whoever can read its state directory or secret, sees the rows"
    " and is trusted. Readers of the releases are not: they may know everything but one unit, pool"
    " all releases, and write further rows after they saw them."
)
JUSTIFICATION = (
    "Bounds and settings are those of the query, or follow from public expectations by a forecast"
    " of the error; `streamveil explain` prints each with its reason before a row is read. The"
    " guarantee is derived from the noise that runs. `streamveil verify-privacy` looks for inputs"
    " that lose more than is claimed, `streamveil audit` tests the noise that is drawn."
)


@dataclass(frozen=True, kw_only=True)
class Publisher:
    """Facts that only the publisher knows."""

    name: str  # of the data product
    description: str
    curators: tuple[str, ...]
    intended_use: str
    region: str
    published: str  # YYYY-MM-DD
    authors: tuple[str, ...]  # of the entry
    sector: str = "Technology"
    sources: str = ""  # links

    def __post_init__(self) -> None:
        require_one_of("sector", self.sector, SECTORS)
        for name in ("name", "description", "curators", "intended_use", "region", "authors"):
            if not all(getattr(self, name) or [""]):
                raise PlanError(f"an entry of the registry needs {name}, and it is empty")
        if not re.fullmatch(r"\d{4}-\d{2}-\d{2}", self.published):
            raise PlanError(f"the day of publication is YYYY-MM-DD, not '{self.published}'")


def entry(ledger: Ledger, told: Publisher) -> dict[str, Any]:
    """The entry, as plain values that readers of YAML and JSON take."""
    charges = ledger.entries()
    return {
        "url_slug": re.sub(r"[^a-z0-9]+", "_", told.name.lower()).strip("_"),
        "status": STATUS,
        "tier": TIER,
        "deployment": {
            "basic": basic(told),
            "dp_variant": {
                "variant_name": variant(ledger.limit),
                "data_domain": paragraphs(domains(charges)),
                "unprotected_quantities": paragraphs(UNPROTECTED),
            },
            "privacy_loss": privacy_loss(ledger),
            "deployment_model": model(charges),
            "accounting": {
                "post_processing": paragraphs(post_processing(charges)),
                "composition": paragraphs(composition(ledger)),
            },
            "implementation": implementation(charges),
            "administrative": {
                "sources": told.sources,
                "notes": f"The ledger holds {len(charges)} charges; its hash is {ledger.head}.",
                "registry_authors": list(told.authors),
            },
        },
    }


def basic(told: Publisher) -> dict[str, Any]:
    """The basic facts, first in an entry."""
    return {
        "name": told.name, "data_curators": list(told.curators), "description": told.description,
        "intended_use": told.intended_use, "data_product_type": "Summary statistics",
        "data_product_region": told.region, "publication_date": told.published,
        "data_product_sector": told.sector,
    }  # fmt: skip


def variant(limit: Budget) -> str:
    """The registry's name for the measure of the limit; Gaussian DP has none."""
    if limit.is_pure:
        return "Pure DP"
    if limit.rho is not None and not limit.delta:
        return "Zero-concentrated DP"
    return "Custom" if limit.epsilon is None else "Approximate DP"


def privacy_loss(ledger: Ledger) -> dict[str, Any]:
    """Who is protected, and by how much."""
    limit, protects = ledger.limit, ledger.protects
    parameters = {name: float(value) for name, value in stated(ledger) if value}
    said = [f"The limit of all charges together is {limit}; spent so far: {ledger.spent()}."]
    for span in SPANS if protects.period is not None else ():
        longer = span_of(ledger, span)
        epsilon = longer["epsilon"]
        what = "no finite epsilon" if epsilon is None else f"epsilon = {epsilon:.4g}"
        said.append(f"Present in all periods of a {span}: {what} at delta = {longer['delta']}.")
    period = "" if protects.period is None else f", {protects.each}"
    return {
        "privacy_unit": f"{protects.unit}{period}",
        "privacy_unit_details": f"Adjacent datasets: {protects.phrase}.",
        "privacy_parameters": parameters,
        "privacy_parameters_details": paragraphs(said),
    }


def stated(ledger: Ledger) -> Iterator[tuple[str, Fraction]]:
    """The limit in the parameters that the registry knows.

    A limit in mu, or in rho with a delta, is stated at twice its delta: half is for the slack.
    """
    limit, delta = ledger.limit, ledger.limit.quoted_delta
    if limit.epsilon is not None:
        yield from (("epsilon", limit.epsilon), ("delta", limit.delta or Fraction(0)))
        return
    if limit.rho is not None:
        yield "rho", limit.rho
    if ledger.caps is not None and (limit.mu is not None or limit.delta):
        delta = 2 * delta if limit.delta else delta
        yield from (("epsilon", Fraction(ledger.caps.epsilon(delta))), ("delta", delta))


def model(charges: list[Charge]) -> dict[str, Any]:
    """Who is trusted, how often something is published, and who may ask."""
    many = any(charge.horizon != 1 for charge in charges)
    clocks = {query["clock"]["kind"] for query in queries(charges)}
    asked = any(options_of(charge).get("ask_share") for charge in charges)
    return {
        "model_name": "Central",
        "model_name_details": "A trusted host sees the rows and draws all noise.",
        "actors": ACTORS,
        "release_type": "Many releases" if many else "One release",
        "release_type_details": "All releases of a job are charged together before its first one;"
        " a job that would pass the limit of the ledger is refused. Nothing refreshes a budget but"
        " a new period of the unit.",
        "data_source_type": "Dynamic" if clocks - {"once"} else "Static",
        "data_source_type_details": "Rows come while the job runs, and a row counts from its step"
        " on." if clocks - {"once"} else "All rows are there at the start.",
        "access_type": "Interactive" if asked else "Non-interactive",
        "access_type_details": "Analysts put counting questions to the closed steps of a table; all"
        " of them share one part of the budget and are taken to collude." if asked
        else "Readers see what is published.",
    }  # fmt: skip


def implementation(charges: list[Charge]) -> dict[str, Any]:
    """The implementation: earlier steps, what runs, and why."""
    looks = [share for charge in charges if (share := options_of(charge).get("look_share"))]
    before = (
        "Settings were chosen by noisy histograms of the rows, which are charged to the same"
        " budget." if looks else "No setting was chosen from the rows."
    )  # fmt: skip
    said = [*MECHANISMS, *mechanisms(charges)]
    return {
        "preprocessing_and_hyperparameter_tuning": before,
        "mechanisms": paragraphs(said),
        "justification": JUSTIFICATION,
    }


def queries(charges: Iterable[Charge]) -> Iterator[dict[str, Any]]:
    """The queries of jobs, if the charge names them."""
    for charge in charges:
        query = (charge.about or {}).get("query")
        if query:
            yield query


def options_of(charge: Charge) -> dict[str, Any]:
    """Options of a job's query."""
    return dict((charge.about or {}).get("options", {}))


def domains(charges: list[Charge]) -> Iterator[str]:
    """The rows of each query."""
    for query in queries(charges):
        measures = ", ".join(measure_words(one) for one in query["aggregates"])
        groups = ", ".join(key["name"] for key in query["keys"]) or "none"
        where = f" where {query['where']}" if query["where"] else ""
        yield (
            f"{query['name']}: rows of {query['source']['name']}{where}; {measures}; groups:"
            f" {groups} ({query['keys_are']})."
        )
    if not any(True for _ in queries(charges)):
        yield "Any rows of the sources that the charged mechanisms name."


def measure_words(one: dict[str, Any]) -> str:
    """One aggregate with its bounds."""
    bounds = "" if one["low"] is None else f" in [{one['low']:g}, {one['high']:g}]"
    return f"{one['name']} = {one['function']}({one['expression'] or '*'}{bounds})"


def mechanisms(charges: list[Charge]) -> Iterator[str]:
    """The noise of each job, and the versions that ran."""
    for charge in charges:
        about = charge.about or {}
        yield f"{charge.name}: {charge.loss}."
        bounding = about.get("mechanisms", {}).get("bounding", {})
        limits = [f"{name} = {value}" for name, value in bounding.items() if value is not None]
        if limits:
            yield f"{charge.name}, bounds of a unit: {', '.join(limits)}."
        for counter in about.get("mechanisms", {}).get("counters", []):
            yield f"{charge.name}: a counter ({counter['kind']}) with sigma = {counter['sigma']:g}."
    versions: dict[str, Any] = {}
    for charge in charges:
        versions |= (charge.about or {}).get("versions", {})
    if versions:
        yield "Versions: " + ", ".join(f"{name} {value}" for name, value in versions.items()) + "."


def post_processing(charges: list[Charge]) -> Iterator[str]:
    """The steps after noise is added."""
    named = ("non_negative", "integer", "monotone")
    done = sorted({name for one in charges for name in named if options_of(one).get(name)})
    steps = sum(len(query.get("post", ())) for query in queries(charges))
    yield (f"Options: {', '.join(done)}." if done else "Numbers are published as they were drawn.")
    if steps:
        yield f"{steps} steps of SQL over each release (HAVING, ORDER BY, arithmetic)."
    yield "Every number comes with an interval that follows from its noise alone."


def composition(ledger: Ledger) -> Iterator[str]:
    """How charges add up."""
    yield ACCOUNTING["rule"] + "."  # type: ignore[operator]  # a text
    kinds: dict[str, str] = ACCOUNTING["kinds"]  # type: ignore[assignment]  # of texts
    yield "Kinds of loss: " + "; ".join(f"{name}: {how}" for name, how in kinds.items()) + "."
    epsilon = number(ledger.spent().epsilon(ledger.limit.quoted_delta))
    if epsilon is not None:
        yield f"Spent, as epsilon at delta {ledger.limit.quoted_delta}: {rounded_up(epsilon)}."


def paragraphs(said: Iterable[str]) -> str:
    """Texts as paragraphs, as the registry renders them."""
    return "\n\n".join(said)
