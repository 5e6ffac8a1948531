"""What AWS's error codes mean, and botocore's exceptions as ours. Decided by code, never by the words around it.

Codes: docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from gpuops.errors import CredentialsError, GpuopsError, ProviderError, RateLimited, Unreadable
from gpuops.values import Refused

RefusedKind = Literal["capacity", "price", "quota", "invalid", "account"]

BAD_CREDENTIALS = frozenset(
    "AuthFailure ExpiredToken ExpiredTokenException InvalidClientTokenId UnrecognizedClientException RequestExpired "
    "SignatureDoesNotMatch InvalidSignatureException IncompleteSignature MissingAuthenticationToken "
    "MissingAuthenticationTokenException InvalidAccessKeyId NotAuthorizedException TokenRefreshRequired".split()
)
DENIED = frozenset(
    "UnauthorizedOperation AccessDenied AccessDeniedException OptInRequired Blocked PendingVerification "
    "UnauthorizedAccess Client.UnauthorizedOperation".split()
)
THROTTLED = frozenset(
    "RequestLimitExceeded Throttling ThrottlingException ThrottledException TooManyRequestsException "
    "RequestThrottled RequestThrottledException ResourceCountExceeded".split()
)
_OTHERS_MISSING = frozenset("ResourceNotFoundException FileSystemNotFound NatGatewayNotFound".split())

REFUSED: dict[str, RefusedKind] = {
    "InsufficientInstanceCapacity": "capacity",
    "InsufficientHostCapacity": "capacity",
    "InsufficientReservedInstanceCapacity": "capacity",
    "InsufficientCapacity": "capacity",
    "UnfulfillableCapacity": "capacity",
    "ReservationCapacityExceeded": "capacity",
    "InsufficientFreeAddressesInSubnet": "capacity",
    "Unsupported": "capacity",
    "VcpuLimitExceeded": "quota",
    "InstanceLimitExceeded": "quota",
    "MaxSpotInstanceCountExceeded": "quota",
    "VolumeLimitExceeded": "quota",
    "AddressLimitExceeded": "quota",
    "NetworkInterfaceLimitExceeded": "quota",
    "SpotMaxPriceTooLow": "price",
    "InvalidParameterValue": "invalid",
    "InvalidParameterCombination": "invalid",
    "InvalidParameter": "invalid",
    "MissingParameter": "invalid",
    "UnknownParameter": "invalid",
    "UnsupportedOperation": "invalid",
    "InvalidInstanceType": "invalid",
    "InvalidAMIID.Malformed": "invalid",
    "InvalidAMIID.NotFound": "invalid",
    "InvalidAMIID.Unavailable": "invalid",
    "InvalidBlockDeviceMapping": "invalid",
    "InvalidGroup.NotFound": "invalid",
    "InvalidSubnetID.NotFound": "invalid",
    "InvalidUserData.Malformed": "invalid",
    "VPCIdNotSpecified": "invalid",
    "DefaultVpcDoesNotExist": "invalid",
    "MissingInput": "invalid",
}
"""Answers to RunInstances after which certainly nothing was made. A code that is not here leaves the outcome unknown: so do
IdempotentParameterMismatch, which says that an earlier call with this token was taken, and "too many requests", which says
nothing of the call that it answers."""

LATE: dict[str, RefusedKind | Literal[""]] = {
    "Server.InsufficientInstanceCapacity": "capacity",
    "Server.InternalError": "",
    "Client.InternalError": "",
    "Client.VolumeLimitExceeded": "quota",
    "Client.InvalidSnapshot.NotFound": "invalid",
}
"""Reasons of a terminated instance that never started: refusals which came after the create call."""

TAKEN_BACK = "Server.SpotInstanceTermination"


class Answered(ProviderError):
    """AWS answered with an error code."""

    def __init__(self, message: str, aws_code: str) -> None:
        super().__init__(message)
        self.aws_code = aws_code


class Unfit(ProviderError):
    """An order that no create call can carry, however often it is tried."""


class Missing(Answered):
    """What was asked for is not there: an authenticated answer."""


class Denied(CredentialsError):
    """The credentials are good and lack this right, or the account is not ready for it."""

    def __init__(self, message: str, aws_code: str) -> None:
        super().__init__(message, next_command="add the right to the policy: docs/how-to/aws.md has the whole of it")
        self.aws_code = aws_code


def translate(error: Exception, doing: str, profile: str) -> GpuopsError:
    """The error of ours for whatever boto3 raised while `doing` (a method and a region)."""
    from botocore import exceptions as raised
    from botocore.parsers import ResponseParserError

    if isinstance(error, raised.ClientError):
        return _answered(error, doing, profile)
    no_credentials = (
        raised.NoCredentialsError, raised.PartialCredentialsError, raised.CredentialRetrievalError, raised.ProfileNotFound,
        raised.SSOError, raised.TokenRetrievalError, raised.NoAuthTokenError, raised.InvalidConfigError,
    )  # fmt: skip
    if isinstance(error, no_credentials):
        return bad_credentials(str(error), profile)
    if isinstance(error, (ResponseParserError, ValueError)):
        return Unreadable(f"{doing}: the answer cannot be read: {_short(str(error))[:120]}")
    return ProviderError(f"{doing}: {type(error).__name__}: {_short(str(error))}")


def bad_credentials(why: str, profile: str) -> CredentialsError:
    """Credentials that are missing, expired or wrong, with the command that mends it."""
    login = f"aws sso login --profile {profile}" if profile else "aws sso login (or: aws configure)"
    return CredentialsError(f"the AWS credentials are not good: {_short(why)}", next_command=login)


def refusal(error: GpuopsError) -> Refused | None:
    """What an answer to the create call refuses; None where the outcome is unknown."""
    if isinstance(error, CredentialsError):
        return Refused(error.message, "account")
    if isinstance(error, Answered) and (kind := REFUSED.get(error.aws_code)):
        return Refused(error.message, kind)
    return None


def _answered(error: Exception, doing: str, profile: str) -> GpuopsError:
    response = getattr(error, "response", {})
    said = response.get("Error", {})
    code, text = str(said.get("Code", "")), _short(str(said.get("Message", "")))
    message = f"{doing}: {code}: {text}"
    if code in BAD_CREDENTIALS:
        return bad_credentials(message, profile)
    if code in DENIED:
        return Denied(message, code)
    if code in THROTTLED:
        return RateLimited(message, _wait_s(response))
    if code.endswith((".NotFound", ".Malformed")) or code in _OTHERS_MISSING:
        # a malformed id was never given to anything
        return Missing(message, code)
    return Answered(message, code)


def _wait_s(response: Mapping[str, Any]) -> float:
    """The seconds that an answer asks to wait; 0 when it names none (EC2 seldom does)."""
    said = response.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("retry-after", "")
    return float(said) if re.fullmatch(r"[0-9]{1,6}", str(said)) else 0.0


def _short(text: str) -> str:
    return " ".join(text.split())[:300]
