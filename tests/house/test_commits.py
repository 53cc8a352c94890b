"""Commit messages since `BASE`: an imperative subject of at most 72 characters, the reasons in the body."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]

BASE = "362cfa4"
"""The last commit before the rule; older subjects stay as they are."""

SUBJECT_MOST = 72
BODY_MOST = 140

NOT_A_VERB = {"a", "an", "the", "this", "these", "some", "no", "more", "also", "now", "new", "wip"}
IMPERATIVES = {
    *("bring", "embed", "exceed", "feed", "need", "ping", "proceed", "seed", "shed", "speed", "string"),
    *("bias", "focus", "alias", "canvas"),
}
"""Imperatives that end as a past tense, a participle or a third person does."""


def faults(subject: str, body: str = "") -> list[str]:
    """What is wrong with a message; an empty list when nothing is."""
    found = []
    first = re.match(r"\w+", subject)
    word = first.group().lower() if first else ""
    inflected = re.search(r"(?:ed|ing|[^su]s)$", word) is not None and word not in IMPERATIVES
    if len(subject) > SUBJECT_MOST:
        found.append(f"the subject has {len(subject)} characters, of at most {SUBJECT_MOST}")
    if subject.endswith("."):
        found.append("the subject ends with a full stop")
    if not subject[:1].isupper() or word in NOT_A_VERB or inflected:
        found.append(f"the subject does not begin with a capitalised imperative: {word!r}")
    if any(len(line) > BODY_MOST and " " in line.strip() for line in body.splitlines()):
        found.append(f"a line of the body has more than {BODY_MOST} characters")
    return found


def git(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["git", "-C", str(REPOSITORY), *arguments], capture_output=True, text=True, check=False
    )


def test_new_commits_keep_the_rule() -> None:
    if git("merge-base", "--is-ancestor", BASE, "HEAD").returncode != 0:
        pytest.skip(f"no history since {BASE}: a tarball or a shallow clone")
    log = git("log", "--no-merges", "--format=%h%x00%s%x00%b%x01", f"{BASE}..HEAD").stdout
    broken = []
    for entry in log.split("\x01")[:-1]:
        commit, subject, body = entry.strip().split("\0")
        broken += [f"{commit} {subject!r}: {fault}" for fault in faults(subject, body)]
    assert not broken, "\n".join(broken)


@pytest.mark.parametrize(
    "subject",
    [
        "Pace retransmissions like new data",
        "Bring the lab down after a failed test",
        "Address a race between two waiters",
        "Focus the report on one figure",
    ],
)
def test_an_imperative_subject_passes(subject: str) -> None:
    assert faults(subject, "Why it is so.\n\nhttps://example.org/" + "a" * 200) == []


@pytest.mark.parametrize(
    "subject",
    [
        "Paced retransmissions like new data",
        "Pacing of retransmissions",
        "Paces retransmissions",
        "A pacer for retransmissions",
        "pace retransmissions",
        "Pace retransmissions.",
        "Pace retransmissions" + " like new data" * 4,
    ],
)
def test_any_other_subject_is_refused(subject: str) -> None:
    assert len(faults(subject)) == 1


def test_a_long_line_in_the_body_is_refused() -> None:
    assert len(faults("Pace retransmissions", "word " * 30)) == 1
