"""Known holes in what `perdure[all]` consists of: asks pip-audit, and says so if it could not find out.

    0  every component was looked up, and none has a known hole
    1  some have
    3  not all could be looked up: no pip-audit, no network, or a database that does not know them. With --offline it
       is said all the same, and ends with 0. Holes that were found count in any case.

pip-audit itself ends well when it has found nothing out, for instance behind a mirror. So what it skipped is counted.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from release.sbom import parts

PATIENCE_S = 300


class Finding(NamedTuple):
    code: int
    lines: list[str]


def judge(wanted: set[str], told: dict[str, Any]) -> Finding:
    """What pip-audit's answer means for what was asked about."""
    known = {one["name"].lower(): one for one in told.get("dependencies", ())}
    holes = [
        f"{one['name']} {one.get('version', '?')}: {hole['id']}, "
        f"fixed in {', '.join(hole['fix_versions']) or 'no version'}"
        for one in known.values()
        for hole in one.get("vulns", ())
    ]
    missing = sorted(name for name in wanted if name not in known or known[name].get("skip_reason"))
    if holes:
        return Finding(1, [*holes, *([f"not looked up: {', '.join(missing)}"] if missing else [])])
    if missing:
        return Finding(3, [f"NOT AUDITED: {len(missing)} of {len(wanted)} were not looked up: {', '.join(missing)}"])
    return Finding(0, [f"{len(wanted)} components, none with a known hole"])


def ask(pins: dict[str, str]) -> Finding:
    with tempfile.TemporaryDirectory() as folder:
        listed = Path(folder) / "requirements.txt"
        listed.write_text("".join(f"{name}=={version}\n" for name, version in sorted(pins.items())))
        command = [sys.executable, "-m", "pip_audit", "-r", str(listed), "--no-deps", "--disable-pip", "-f", "json"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        except subprocess.TimeoutExpired:
            return Finding(3, [f"NOT AUDITED: no answer within {PATIENCE_S} s"])
    try:
        told = json.loads(done.stdout)
    except ValueError:
        why = done.stderr.strip().splitlines()[-1:] or ["no answer"]
        return Finding(3, [f"NOT AUDITED: {why[0][:300]}"])
    return judge(set(pins), told)


def ended(finding: Finding, *, is_offline: bool) -> tuple[int, list[str]]:
    """The code to end with, and what to say."""
    if finding.code != 3:
        return finding.code, finding.lines
    lines = [*finding.lines, "`pip install pip-audit`, and run this where it reaches its database."]
    if is_offline:
        return 0, [
            *lines,
            "GOING ON WITHOUT AN AUDIT, as OFFLINE asks: nothing is known of holes in these versions.",
        ]
    return 3, [*lines, "To go on without an audit: make release-check OFFLINE=1"]


def main(arguments: list[str]) -> int:
    found = parts("perdure", frozenset({"all"}))
    pins = {name: here.version for name, (here, _) in found.items() if name != "perdure"}
    code, lines = ended(ask(pins), is_offline="--offline" in arguments)
    print("\n".join(lines))
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
