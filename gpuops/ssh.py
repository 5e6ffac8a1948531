"""The rented host of a run, over SSH: keys and pinning, the first check, sending, launching, sealing and fetching.

The first login, in `check`, is made by fabric and paramiko; everything after it shares one OpenSSH connection.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpuops import answers, argv, hostchecks, hostkeys, inputs, names, sending, sources
from gpuops.codec import from_json, to_json
from gpuops.errors import HostError, Unreachable
from gpuops.fetching import Attempt, Fetch, channels_for, local_problem
from gpuops.host.supervisor import LOG_BYTES
from gpuops.ports import LOG_PIECE, Clock, HostFacts, Launched, Progress
from gpuops.remote import Connection, control_path, run_child, supervisor_source
from gpuops.spec import Input, Spec, remarks
from gpuops.values import (
    Endpoint,
    Generation,
    HostKey,
    HostStatus,
    InputsSeen,
    Probed,
    RunId,
    Sealed,
    SendList,
    Surroundings,
    Time,
)

INSTALL_MARGIN_S = 15.0
"""What is left for looking again when an installation took all of its time."""
STOP_SLICE_S = 20.0
LEFTOVER_GRACE_S = 5.0
ANSWER_S = 5.0
"""Of the time that a call has, so much is left for its answer."""
RESUMED = ".gpuops-resumed"


class SshHost:
    """`ports.Host` on OpenSSH. Keys and known_hosts lie under `runs_dir/<run>/ssh`, sockets in `runtime_dir`."""

    def __init__(self, runs_dir: Path, runtime_dir: Path, clock: Clock, jump: hostkeys.Jump | None = None) -> None:
        self.runs_dir, self.runtime_dir, self.clock, self.jump = Path(runs_dir), Path(runtime_dir), clock, jump
        self._connections: dict[str, Connection] = {}

    def keys(self, run: RunId) -> tuple[str, HostKey]:
        """Make the run's client key and host key once."""
        return hostkeys.make(self._directory(run), self.clock)

    def pin(self, run: RunId, endpoint: Endpoint, public_key: str) -> str:
        """Pin the key of this address for the run and return its fingerprint."""
        return hostkeys.pin(self._directory(run), endpoint, public_key)

    def scan(self, run: RunId, endpoint: Endpoint, until: Time) -> str:
        """The key that the host presents, which proves nothing by itself."""
        if self.jump is not None:
            from gpuops import firstlogin  # as in `check`

            login = argv.Login(endpoint, "", "", "ssh-ed25519", "", self._jump_login(run))
            return firstlogin.presented(login, min(15.0, until - self.clock.now()))
        done = run_child(argv.keyscan(endpoint, 10), self.clock, min(until, self.clock.now() + 15))
        if key := hostkeys.presented(done.out):
            return key
        raise Unreachable(f"{endpoint.host} port {endpoint.port} presents no ed25519 host key yet")

    def check(self, run: RunId, endpoint: Endpoint, spec: Spec, until: Time) -> HostFacts:
        """Log in, collect the facts, install what is missing where the manifest says so, and compare with the spec."""
        # here and not above: only the first login needs paramiko, and `status` must start without it
        from gpuops import firstlogin

        begun = self.clock.now()
        if until <= begun:
            raise Unreachable("no time left to log in")
        login, request = self._login(run, endpoint), hostchecks.request(spec)
        answer, took = firstlogin.ask(login, "facts", request, until - begun)
        missing = hostchecks.missing_tools(answer)
        seconds = until - self.clock.now() - INSTALL_MARGIN_S
        if missing and spec.host_tools == "install" and seconds > 0:
            wanted = {"tools": missing, "seconds": seconds}
            installed = firstlogin.ask(login, "install", wanted, until - self.clock.now())[0]
            answer, took = firstlogin.ask(login, "facts", request, until - self.clock.now())
            answer["installed"] = installed
        return hostchecks.compare(names.escape_all(answer), spec, self.clock.now() - took / 2, self._own_rsync(until))

    def preview(self, run: RunId, endpoint: Endpoint, spec: Spec, until: Time) -> SendList:
        """The rsync dry run against the host."""
        connection = self._connection(run, endpoint)
        spec, differs = sources.located(spec, self._directory(run).parent, self.clock, until)
        listed = sending.preview(spec, connection, self.clock, until)
        return replace(listed, notes=(*remarks(spec), *differs))

    def send(self, run: RunId, endpoint: Endpoint, spec: Spec, approved: SendList, until: Time) -> tuple[int, int]:
        """Send the approved list and verify it, and the manifest's inputs, on the host."""
        connection = self._connection(run, endpoint)
        spec, _ = sources.located(spec, self._directory(run).parent, self.clock, until)
        count, size = sending.send(spec, approved, connection, self.clock, until)
        if not spec.inputs:
            beside = sending.verify_inputs(spec, connection, until, approved)
            count, size = count + beside[0], size + beside[1]
        return count, size

    def bring(
        self, run: RunId, endpoint: Endpoint, spec: Spec, missing: tuple[Input, ...], until: Time, progress: Progress
    ) -> InputsSeen:
        """Bring inputs to the host; with the last one the manifest's hash list is verified, too."""
        connection = self._connection(run, endpoint)
        seen = inputs.bring(spec, missing, connection, self.clock, until, progress)
        if len(seen.done) == len(missing):
            sending.verify_inputs(spec, connection, until)
        return seen

    def environment(self, run: RunId, endpoint: Endpoint, spec: Spec, until: Time) -> Surroundings | str:
        """Make the environment of training on the host, or wait for it."""
        answer = self._prepared(run, endpoint, "environment", {"plan": _what_runs(run, spec)}, until)
        return answer if isinstance(answer, str) else answers.surroundings(answer)

    def probe(
        self, run: RunId, endpoint: Endpoint, spec: Spec, secrets: Mapping[str, str], until: Time
    ) -> Probed | str:
        """Start the probe on the host, or wait for it; secrets travel over stdin and stay in memory."""
        probe = spec.train.probe
        if probe is None:
            raise HostError("the manifest asks for no probe")
        plan = {
            **_what_runs(run, spec),
            "argv": list(probe.argv),
            "updates": probe.updates,
            "timeout_s": probe.timeout_s,
        }
        answer = self._prepared(run, endpoint, "probe", {"plan": plan, "secrets": dict(secrets)}, until)
        return answer if isinstance(answer, str) else answers.probed(answer)

    def _prepared(
        self, run: RunId, endpoint: Endpoint, operation: str, request: dict[str, Any], until: Time
    ) -> dict[str, Any] | str:
        wait_s = max(0.0, until - self.clock.now() - ANSWER_S)
        answer = self._connection(run, endpoint).call(operation, {**request, "wait_s": wait_s}, until)
        return answer if answer.get("done") is True else names.escape(str(answer.get("tail") or ""), "\n\t")

    def launch(
        self,
        run: RunId,
        endpoint: Endpoint,
        spec: Spec,
        secrets: Mapping[str, str],
        deadline: Time,
        resume: str,
        until: Time,
    ) -> Launched:
        """Start the supervisor; secrets travel over stdin into a file in the host's memory."""
        if resume and not resume.startswith("/"):
            resume = f"{spec.outputs.directory.rstrip('/')}/{resume}"
        train = spec.train
        plan = {
            **_what_runs(run, spec), "wall_clock_s": train.wall_clock_s, "grace_s": train.grace_s, "resume": resume,
            "resume_argument": train.resume_argument, "max_updates": train.max_updates, "max_tokens": train.max_tokens,
            "spec": to_json(spec),
        }  # fmt: skip
        request = {
            "plan": plan, "supervisor": supervisor_source(), "secrets": dict(secrets), "deadline": deadline,
            "avoid": [v.mount for v in spec.volumes],
        }  # fmt: skip
        answer = self._connection(run, endpoint).call("start", request, until)
        return Launched(str(answer.get("boot_id", "")), names.escape(str(answer.get("how", ""))))

    def restore(
        self, run: RunId, endpoint: Endpoint, spec: Spec, generation: Generation, source: str, until: Time
    ) -> str:
        """Send a verified copy and compare every hash on the host. Hidden: nobody takes it for a new generation."""
        content = names.content_digest(generation)[:12]
        target = f"{spec.outputs.directory.rstrip('/')}/{RESUMED}/{content}/{generation.id}"
        sending.restore(generation, source, target, self._connection(run, endpoint), self.clock, until)
        return target

    def recall(self, run: RunId, endpoint: Endpoint, until: Time) -> Spec | None:
        """Read back what was planned, from the host's own record of the run."""
        answer = self._connection(run, endpoint).call("recall", {"run": run}, until)
        if not answer["launched"]:
            return None
        try:
            return from_json(Spec, answer["spec"])
        except (TypeError, KeyError, ValueError, AttributeError, ArithmeticError, StopIteration) as error:
            raise HostError(f"the host's record of what was planned cannot be read: {type(error).__name__}") from error

    def status(self, run: RunId, endpoint: Endpoint, spec: Spec, until: Time) -> HostStatus:
        """Ask the supervisor's record and the output directory."""
        answer = self._connection(run, endpoint).call("status", {"run": run, "outputs": spec.outputs.directory}, until)
        return answers.status(answer)

    def log(self, run: RunId, endpoint: Endpoint, spec: Spec, offset: int, until: Time) -> tuple[str, int]:
        """Ask for the next piece of the log; what training printed must not command a terminal here."""
        request = {"run": run, "offset": offset, "most": LOG_PIECE, "part": LOG_BYTES}
        answer = self._connection(run, endpoint).call("log", request, until)
        text, following = answer.get("text"), answer.get("next")
        if not isinstance(text, str) or not isinstance(following, int) or following < 0:
            raise HostError("a piece of the host's log cannot be understood")
        return names.escape(text, "\n\t"), following

    def set_deadline(self, run: RunId, endpoint: Endpoint, deadline: Time, until: Time) -> Time:
        """Rewrite the deadline file and say what it says now."""
        answer = self._connection(run, endpoint).call("deadline", {"run": run, "deadline": deadline}, until)
        if not isinstance(answer.get("deadline"), (int, float)):
            raise HostError("the deadline file cannot be read back")
        return float(answer["deadline"])

    def set_guest_end(self, run: RunId, endpoint: Endpoint, at: Time, until: Time) -> Time:
        """Rewrite the file of the machine's own timer and say what it says now."""
        answer = self._connection(run, endpoint).call("guest_end", {"at": int(at)}, until)
        if not isinstance(answer.get("at"), int):
            raise HostError("the machine's own timer cannot be read back")
        return float(answer["at"])

    def seal(self, run: RunId, endpoint: Endpoint, spec: Spec, until: Time) -> Sealed:
        """Stop training, wait until nothing is left, then hash what is complete."""
        connection = self._connection(run, endpoint)
        while True:
            left = until - self.clock.now()
            request: dict[str, Any] = {
                "run": run, "why": "sealing", "wait_s": max(0.0, min(STOP_SLICE_S, left - 1)),
                "grace_s": LEFTOVER_GRACE_S,
            }  # fmt: skip
            if connection.call("stop", request, until)["ended"]:
                break
            if self.clock.now() >= until:
                raise Unreachable("training has not ended yet")
        outputs = spec.outputs
        request = {
            "run": run, "outputs": outputs.directory, "workdir": spec.train.workdir, "keep_last": outputs.keep_last,
            "best": outputs.best, "load_check": list(outputs.load_check),
            "load_s": max(1.0, (until - self.clock.now()) / 2),
        }  # fmt: skip
        return answers.sealed(connection.call("seal", request, until))

    def hash_generation(self, run: RunId, endpoint: Endpoint, spec: Spec, generation: str, until: Time) -> Generation:
        """Hash one complete generation on the host while training goes on."""
        request = {"run": run, "outputs": spec.outputs.directory, "generation": generation, "best": spec.outputs.best}
        found = answers.generation(self._connection(run, endpoint).call("hash", request, until))
        if found.id != generation:
            raise HostError(f"the host hashed {found.id} instead of {names.escape(generation)}")
        return found

    def fetch(
        self,
        run: RunId,
        endpoint: Endpoint,
        spec: Spec,
        generation: Generation,
        into: str,
        until: Time,
        progress: Progress,
    ) -> bool:
        """Bring the generation's files into `into`; what arrived stays there for the next call."""
        problem = names.generation_problem(generation)
        if problem:
            raise HostError(f"the generation cannot be carried: {problem}")
        attempt = Attempt(into, generation)
        try:
            attempt.open()
        except OSError as error:
            raise local_problem(error, attempt, generation.bytes) from error
        where = {"run": run, "outputs": spec.outputs.directory, "generation": generation.id}
        fetch = Fetch(self._connection(run, endpoint), self.clock, until, where, attempt, progress)
        return fetch.run(channels_for(endpoint, generation.bytes))

    def close(self, run: RunId) -> None:
        """End the shared connections of a run; training on the host does not notice."""
        for key in [k for k in self._connections if k.startswith(run + "|")]:
            self._connections.pop(key).drop()

    def shell(self, run: RunId, endpoint: Endpoint) -> list[str]:
        """The command that gives a person a shell on the host: the pinned key, nothing of the user's own settings."""
        return argv.interactive(self._login(run, endpoint))

    def _own_rsync(self, until: Time) -> str:
        """The version line of this computer's rsync, for the facts; empty when there is none."""
        try:
            return run_child(argv.rsync_version(), self.clock, until).out.decode("utf-8", "replace").split("\n")[0]
        except HostError:
            return ""

    def _directory(self, run: RunId) -> Path:
        if not names.RUN_ID.fullmatch(run):
            raise HostError(f"not a run id: {names.escape(run)!r}")
        return self.runs_dir / run / "ssh"

    def _login(self, run: RunId, endpoint: Endpoint) -> argv.Login:
        """The run's own identity and pin. Raises `HostKeyMismatch` when nothing, or another address, is pinned."""
        argv.check_endpoint(endpoint)
        directory = self._directory(run)
        line = hostkeys.pinned(directory, endpoint)
        self._make_runtime()
        control = control_path(self.runtime_dir, f"{self.runs_dir}|{run}|{endpoint}|{line}|{self.jump}")
        identity, known = str(directory / "client"), str(directory / "known_hosts")
        return argv.Login(endpoint, identity, known, line.split()[1], control, self._jump_login(run))

    def _jump_login(self, run: RunId) -> argv.Login | None:
        return hostkeys.jump_login(self._directory(run), self.jump)

    def _connection(self, run: RunId, endpoint: Endpoint) -> Connection:
        login = self._login(run, endpoint)
        return self._connections.setdefault(f"{run}|{login.control}", Connection(login, self.clock))

    def _make_runtime(self) -> None:
        self.runtime_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        info = self.runtime_dir.lstat()
        if info.st_uid != os.getuid() or info.st_mode & 0o077:
            raise HostError(
                f"{self.runtime_dir} must belong to you alone (mode 0700): whoever can open a socket in it is logged in"
            )


def _what_runs(run: RunId, spec: Spec) -> dict[str, Any]:
    """The part of the host's plan that says which program runs, where and in what; the same before and at launch."""
    return {
        "run": run, "argv": list(spec.train.argv), "workdir": spec.train.workdir, "outputs": spec.outputs.directory,
        "env": dict(spec.env), "environment": to_json(spec.environment), "avoid": [v.mount for v in spec.volumes],
    }  # fmt: skip
