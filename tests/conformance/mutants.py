"""The model adapter with one mistake at a time, and the test of the kit that must find it: the kit itself is held to these.

A mistake is a piece of text of one file of `tests/conformance/pond` and what stands there instead.
"""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gpuops.provider import Provider

POND = Path(__file__).parent / "pond"


@dataclass(frozen=True)
class Mutant:
    """One mistake, named by what the adapter then does."""

    does: str
    file: str
    here: str
    instead: str
    caught_by: str
    given: tuple[object, ...] = ()
    """The parameters of that test."""

    def factory(self, folder: Path, package: str) -> Callable[..., Provider]:
        """The adapter with this mistake, as `package` in `folder`, which is on the path."""
        shutil.copytree(POND, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
        path = folder / package / self.file
        text = path.read_text()
        if text.count(self.here) != 1:
            raise ValueError(f"{self.does}: its place occurs {text.count(self.here)} times in {self.file}")
        path.write_text(text.replace(self.here, self.instead))
        importlib.invalidate_caches()
        made: Callable[..., Provider] = importlib.import_module(f"{package}.adapter").provider
        return made


_CREATE = 'row, _ = self._wire.call("POST", "machines", until, json=body)\n        except PondError as error:\n'
_RAISE = "            raise  # any other word: a machine may have been made"
_ROWS = 'rows, follows = list(page["items"]), page["next"]'
_APPEND = "items.append(words.billable(kind, row, account))"
_LIMITED = 'raise RateLimited(f"{what}: too many requests", float(wait) if wait.isdigit() else 0.0)'
_BELIEVE = """        except PondError as error:
            self._believe(error, ref, until)
            return Observation"""
_DELETE = """            self._wire.call("DELETE", _path(ref), until)
        except PondError as error:
            self._believe(error, ref, until)"""

MUTANTS = (
    # --- absent
    Mutant("takes 404 for absent without asking for the account", "adapter.py", _BELIEVE,
           """        except PondError as error:
            if error.word != "not_found":
                raise
            return Observation""", "test_not_found_under_bad_credentials_is_not_absent"),
    Mutant("takes the word of another account", "adapter.py",
           "if (account := self._account(until)) != ref.account:", "if not (account := self._account(until)):",
           "test_what_never_existed_is_absent"),
    Mutant("takes every error of a look for absent", "adapter.py", 'if error.word != "not_found":', "if not error.word:",
           "test_a_look_that_fails_is_not_absent"),
    Mutant("takes 404 for a request to end it", "adapter.py", _DELETE,
           """            self._wire.call("DELETE", _path(ref), until)
        except PondError:
            pass""", "test_not_found_under_bad_credentials_is_not_absent"),
    # --- the create call
    Mutant("takes 429 for a refusal", "adapter.py", _CREATE,
           'row, _ = self._wire.call("POST", "machines", until, json=body)\n'
           "        except ProviderError as error:\n"
           "            if not isinstance(error, PondError):\n"
           '                if error.code == "rate_limited":\n'
           '                    return Refused(error.message, "quota")\n'
           "                raise\n", "test_too_many_requests_is_no_answer_to_a_create_call"),
    Mutant("takes no answer for a refusal", "adapter.py", _CREATE,
           'row, _ = self._wire.call("POST", "machines", until, json=body)\n'
           "        except ProviderError as error:\n"
           "            if not isinstance(error, PondError):\n"
           "                return Refused(error.message)\n",
           "test_an_answer_that_never_came_is_unknown_and_found_by_nonce", ("lose_answer",)),
    Mutant("takes a server error for a refusal where the word is known", "adapter.py",
           "error.status < 500 and error.word", "error.word",
           "test_an_answer_that_never_came_is_unknown_and_found_by_nonce", ("error_after_create",)),
    Mutant("takes every word of the vendor for a refusal", "adapter.py", _RAISE,
           "            return Refused(error.message)",
           "test_an_answer_that_never_came_is_unknown_and_found_by_nonce", ("error_after_create",)),
    Mutant("sends the create call again after an error", "adapter.py", _RAISE,
           '            row, _ = self._wire.call("POST", "machines", until, json=body)',
           "test_an_answer_that_never_came_is_unknown_and_found_by_nonce", ("error_after_create",)),
    Mutant("sets the mark by a second call", "adapter.py", _CREATE,
           'row, _ = self._wire.call("POST", "machines", until, json={**body, "name": "new", "labels": {}})\n'
           '            self._wire.call("PUT", f"machines/{row[\'id\']}", until, json=body)\n'
           "        except PondError as error:\n",
           "test_an_answer_that_never_came_is_unknown_and_found_by_nonce", ("lose_answer",)),
    Mutant("sends a create call that is too late", "adapter.py",
           "        if self._wire.now() >= until:\n            return Refused(\"too late: nothing was sent\")\n",
           "        until = max(until, self._wire.now() + ACCOUNT_S)\n",
           "test_a_create_call_that_comes_too_late_is_not_sent"),
    Mutant("makes another key each time", "adapter.py", 'f"keys/{mark_name(order.mark)}", until, json=body)',
           'f"keys/{mark_name(order.mark)}-{time.time()}", until, json=body)',
           "test_preparing_twice_makes_the_same_free_objects"),
    # --- time
    Mutant("leaves the timeout to the library", "wire.py", "headers=headers, timeout=left_s", "headers=headers",
           "test_a_create_call_that_is_cut_off_is_unknown_and_found_by_nonce", ("answer_late",)),
    Mutant("bounds each wait and not their sum", "wire.py", "if self.now() > until:", "if left_s <= 0:",
           "test_a_create_call_that_is_cut_off_is_unknown_and_found_by_nonce", ("answer_late_by_drips",)),
    Mutant("asks when it is too late", "wire.py", "what, left_s = f\"pond: {method} {path}\", until - self.now()",
           "what, left_s = f\"pond: {method} {path}\", 30.0\n        until = max(until, self.now() + left_s)",
           "test_what_is_asked_too_late_is_not_answered"),
    Mutant("waits by itself when there are too many requests", "wire.py", _LIMITED,
           f"__import__('time').sleep(float(wait or 0))\n        {_LIMITED}",
           "test_too_many_requests_is_told_with_the_time_to_wait", (7.0,)),
    Mutant("does not tell how long to wait", "wire.py", "float(wait) if wait.isdigit() else 0.0", "0.0",
           "test_too_many_requests_is_told_with_the_time_to_wait", (7.0,)),
    # --- the listing
    Mutant("reads the first page only", "wire.py", "            if follows is None:\n", "            if rows or not rows:\n",
           "test_a_listing_that_breaks_off_is_not_complete"),
    Mutant("keeps a broken page to itself", "adapter.py", "gaps.append(Gap(region, kind, error.message))", "pass",
           "test_a_listing_that_breaks_off_is_not_complete"),
    Mutant("takes a page that is no JSON for an empty answer", "wire.py", "body = dict(json.loads(content))",
           'body = dict(json.loads(content)) if content[:1] == b"{" else {"items": [], "next": None, "id": "acct-frog"}',
           "test_an_error_page_is_neither_an_empty_account_nor_a_missing_machine", (200,)),
    Mutant("takes anybody's 403 for the vendor's word", "wire.py",
           "    if response.status_code == 429:  # by its status: the page may be anybody's\n",
           "    if response.status_code == 403:\n        raise CredentialsError(what)\n    if response.status_code == 429:\n",
           "test_an_error_page_is_neither_an_empty_account_nor_a_missing_machine", (403,)),
    Mutant("lists only what is ours", "adapter.py", _APPEND,
           f'{_APPEND} if "gpuops-run" in row["labels"] else None',
           "test_what_somebody_else_made_is_listed_without_a_mark_whatever_its_kind"),
    Mutant("lists only what has our name", "adapter.py", _APPEND,
           f'{_APPEND} if row["name"].startswith("gpuops-") else None',
           "test_a_rental_with_another_name_bills_on_in_the_listing"),
    Mutant("lists one thing per name", "adapter.py", _APPEND,
           f'{_APPEND} if row["name"] not in [item.name for item in items] else None',
           "test_a_clone_of_the_mark_is_a_second_hit"),
    Mutant("lists one kind only", "adapter.py", "for kind in [kind for kind in words.PATHS if",
           'for kind in [kind for kind in ("rental", "key") if',
           "test_what_somebody_else_made_is_listed_without_a_mark_whatever_its_kind"),
    Mutant("lists one region only", "adapter.py", 'scope.regions or [row["id"] for row, _ in self._wire.pages("regions", until)]',
           'scope.regions or ["lake"]', "test_what_somebody_else_made_is_listed_without_a_mark_whatever_its_kind"),
    Mutant("lists kinds that nobody asked for", "adapter.py", "if kind in scope.kinds or not scope.kinds]", "]",
           "test_a_listing_covers_what_was_asked_for"),
    Mutant("lists nothing for a kind that it does not know", "adapter.py",
           'for kind in scope.kinds if kind not in words.PATHS]', 'for kind in ()]',
           "test_a_kind_that_cannot_be_listed_is_never_an_empty_list"),
    Mutant("takes the account from its own memory", "adapter.py",
           'row, _ = self._wire.call("GET", "account", until)', 'row = {"id": "acct-frog"}',
           "test_without_good_credentials_nothing_is_absent_and_nothing_is_empty"),
    # --- words, marks, money
    Mutant("takes an unknown word for the end", "words.py", 'STATES.get(row["state"], "unknown")',
           'STATES.get(row["state"], "terminal")', "test_a_word_that_nobody_knows_counts_as_billing"),
    Mutant("lists what is in an unknown state as free", "words.py",
           "    bills, parsed = _bills(kind, row), parse_name(row[\"name\"])\n",
           "    bills, parsed = _bills(kind, row), parse_name(row[\"name\"])\n"
           "    bills = () if _state(row) == \"unknown\" else bills\n",
           "test_a_word_that_nobody_knows_counts_as_billing"),
    Mutant("does not know a late refusal", "words.py", 'row["state"] == "failed" and', 'row["state"] == "refused" and',
           "test_a_refusal_that_comes_late_shows_with_its_reason_and_nothing_bills"),
    Mutant("believes in the end while it is draining", "words.py", '"draining": "ending"', '"draining": "terminal"',
           "test_what_is_ending_has_not_ended"),
    Mutant("hides a damaged mark", "words.py", 'damaged=parsed is not None and parsed.state == "damaged"', "damaged=False",
           "test_a_damaged_mark_is_flagged_and_its_nonce_still_found"),
    Mutant("does not read the host key of the mark", "words.py", "Mark(run, parsed.nonce, owner, parsed.limit_at, host_key)",
           "Mark(run, parsed.nonce, owner, parsed.limit_at)", "test_the_mark_is_part_of_the_create_call"),
    Mutant("does not date what it lists", "words.py", "        bills,\n        created_at(row),", "        bills,\n        None,",
           "test_a_rental_bills_from_its_creation"),
    Mutant("tells milliseconds", "words.py", 'datetime.fromisoformat(row["created"]).timestamp()',
           'datetime.fromisoformat(row["created"]).timestamp() * 1000', "test_money_and_time_come_in_the_contracts_units"),
    Mutant("lists another price than it offered", "words.py", "rate(row).times(1 if bills else 0)", "rate(row).times(0)",
           "test_a_rental_bills_from_its_creation"),
    Mutant("tells what it was asked to set and not what is there", "adapter.py",
           'json={"name": mark_name(replace(mark, limit_at=limit_at))})',
           'json={"name": mark_name(mark)})\n        return limit_at',
           "test_a_moved_limit_is_read_back_and_listed"),
    Mutant("offers the dearest first", "adapter.py", "key=lambda offer: offer.rate.amount",
           "key=lambda offer: -offer.rate.amount",
           "test_offers_are_complete_and_cheapest_first"),
)  # fmt: skip
