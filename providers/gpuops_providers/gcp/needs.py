"""What the project must have before a machine can be rented and reached; each finding with the command that mends it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpuops.errors import CredentialsError, GpuopsError, ProviderError
from gpuops.values import Finding, Time

from .api import LOGIN, Api
from .failures import Failure, Forbidden
from .places import last
from .settings import Settings

GPUS = "GPUS_ALL_REGIONS"
SSH = 22
_ASK_QUOTA = (
    "gcloud beta quotas preferences create --service=compute.googleapis.com --quota-id=GPUS-ALL-REGIONS-per-project "
    "--preferred-value=1 --project={project} --justification=training"
)


def examine(api: Api, settings: Settings, until: Time) -> tuple[Finding, ...]:
    """Project, interface, quota, network and firewall; stops where the next question would make no sense."""
    try:
        project = api.project()
        seen = api.call("Projects", "get", until, {})
    except Forbidden as error:
        return (
            Finding("gcp project", "missing", f"not open to these credentials: {error.message}", error.next_command),
        )
    except CredentialsError as error:
        return (Finding("gcp credentials", "missing", error.message, error.next_command or LOGIN),)
    except Failure as error:
        fix = "gcloud projects list, then set project under [providers.gcp]"
        return (Finding("gcp project", "missing", f"not there: {error.message}", fix),)
    except ProviderError as error:
        return (Finding("gcp project", "warning", f"not seen: {error.message}", "gpuops doctor --provider gcp"),)
    first = Finding("gcp project", "ok", f"{project}; the Compute Engine API is on")
    return (first, _quota(seen, project), *_network(api, settings, project, until))


def _quota(seen: Any, project: str) -> Finding:
    quota = next((q for q in seen.quotas if q.metric == GPUS), None)
    if quota is None:
        return Finding("gcp GPU quota", "warning", f"{GPUS} is not told", _ASK_QUOTA.format(project=project))
    if quota.limit <= 0:
        said = f"{GPUS} = 0, as new projects have it: every purchase would be refused"
        return Finding("gcp GPU quota", "missing", said, _ASK_QUOTA.format(project=project))
    return Finding("gcp GPU quota", "ok", f"{GPUS}: {quota.usage:g} of {quota.limit:g} in use")


def _network(api: Api, settings: Settings, project: str, until: Time) -> Iterator[Finding]:
    if settings.subnetwork or settings.network.startswith("projects/"):
        yield Finding(
            "gcp network", "ok", f"{settings.subnetwork or settings.network}, as config.toml says; not looked at"
        )
        return
    network = last(settings.network)
    try:
        api.call("Networks", "get", until, {"network": network})
        rules = [rule for page in api.pages("Firewalls", "list", until, {}) for rule in page.items]
    except Failure as error:
        if not error.absent:
            yield Finding("gcp network", "warning", f"not seen: {error.message}", "gpuops doctor --provider gcp")
            return
        fix = f"gcloud compute networks create {network} --subnet-mode=auto --project={project}"
        yield Finding("gcp network", "missing", f"{network} is not there", fix)
        return
    except GpuopsError as error:
        yield Finding("gcp network", "warning", f"not seen: {error.message}", error.next_command)
        return
    yield Finding("gcp network", "ok", network)
    admitting = [rule.name for rule in rules if last(rule.network) == network and _admits_ssh(rule)]
    if admitting:
        yield Finding("gcp firewall", "ok", f"{', '.join(admitting[:3])} lets SSH in")
        return
    fix = (
        f"gcloud compute firewall-rules create allow-ssh --network={network} --allow=tcp:{SSH} "
        f"--source-ranges=YOUR.ADDRESS/32 --project={project}"
    )
    # a policy of the organization may let it in all the same, which cannot be seen from here
    yield Finding("gcp firewall", "warning", f"no rule of network {network} lets SSH in", fix)


def _admits_ssh(rule: Any) -> bool:
    """An ingress rule for every machine, from some address, that covers TCP port 22."""
    if rule.disabled or rule.direction != "INGRESS" or rule.target_tags or rule.target_service_accounts:
        return False
    return bool(rule.source_ranges) and any(
        allowed.I_p_protocol.lower() in ("tcp", "all") and _covers(allowed.ports) for allowed in rule.allowed
    )


def _covers(ports: Any) -> bool:
    """No ports means all; each is one number or a range."""
    ranges = [str(port).partition("-") for port in ports]
    return not ranges or any(int(low) <= SSH <= int(high or low) for low, _, high in ranges)
