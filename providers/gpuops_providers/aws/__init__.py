"""EC2 of Amazon Web Services: one instance per rental, by boto3 and the credentials that its own tools use.

Settings (strings, `[providers.aws]` in config.toml), all optional:

    profile         the profile of ~/.aws/config; default: what AWS_PROFILE or the environment says
    region          where to buy when the manifest names no region; default: the profile's
    regions         the only regions that are looked at, separated by commas; default: every enabled one. What bills in others
                    is then not seen by anybody
    markets         on-demand, spot or both; an offer of the manifest that ends in /spot is found without it
    image           the image for manifests that name none: ami-…, or ssm:<parameter>, which the quote resolves to an ami-… of
                    its region and writes into the offer (`terms["image"]`), so that what was approved is what starts
    subnet          the subnet to start in; default: the default VPC's own choice
    user            who logs in, root by default
    scheduler_role  the role (ARN) with which EventBridge Scheduler ends instances. Without it there is no timer on AWS's side,
                    only the one inside the machine, which nobody outside can read back: its grade is then "declared", and
                    `set_end` is not offered
    address_url     where this computer asks for its own address
    prices          a dated price table (TOML) for when the Pricing API cannot be asked: see docs/how-to/aws.md
    cost_explorer   yes: charges are read from Cost Explorer, which takes 0.01 USD for each request. Default: no

Endpoints of one's own are botocore's affair: AWS_ENDPOINT_URL and its kin. boto3 is imported by the first call.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from gpuops.provider import Provider
from gpuops.values import Time

from .adapter import AwsProvider
from .api import Api
from .settings import read

__all__ = ["provider"]

CREDENTIALS = ()
"""None of ours: profiles, single sign-on and the environment are found by boto3."""
CREDENTIAL_PLACES = (
    "AWS_PROFILE",
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "~/.aws/credentials",
    "~/.aws/config",
)
"""Where boto3 looks (boto3 guide, "Credentials"); the metadata service of a machine is not among them: name the provider."""


def provider(
    settings: Mapping[str, str], secret: Callable[[str], str | None], now: Callable[[], Time] = time.time
) -> Provider:
    """The adapter for one account; `secret` is not used, `now` tells money time. Contacts nobody."""
    read_settings = read(settings)
    return AwsProvider(read_settings, Api(read_settings.profile, now), now)
