"""The list of parsers of foreign bytes is complete, and names only what there is."""

from __future__ import annotations

import re
from pathlib import Path

from parser_list import OWN, PARSERS, REPOSITORY, property_tests

WHERE = "fuzz/parser_list.py"


def missing_and_gone(crates: Path) -> list[str]:
    """A sentence for each test that is in no table, in two, or only in a table."""
    there = {(file, name) for file, names in property_tests(crates).items() for name in names}
    parsers = {(file, name) for file, (_, names) in PARSERS.items() for name in names}
    own = {(file, name) for file, names in OWN.items() for name in names}
    told = [
        f"{file} has the property test {name}, which is in no table of {WHERE}: add it to PARSERS under this file where it "
        "feeds bytes or messages from elsewhere, else to OWN"
        for file, name in sorted(there - parsers - own)
    ]
    told += [
        f"{WHERE} names {name} of {file}, where there is no such property test: remove or rename it"
        for file, name in sorted((parsers | own) - there)
    ]
    return told + [f"{WHERE} names {name} of {file} in both tables" for file, name in sorted(parsers & own)]


def test_every_property_test_of_the_crates_is_listed() -> None:
    told = missing_and_gone(REPOSITORY / "crates")
    assert not told, "\n".join(told)


def test_a_parser_that_is_not_listed_is_found(tmp_path: Path) -> None:
    source = tmp_path / "crates" / "new" / "src"
    source.mkdir(parents=True)
    (source / "lib.rs").write_text(
        '// proptest! { fn not_this() {} }\nconst A: &str = "proptest! { fn nor_this() {} }";\n'
        "#[cfg(test)]\nmod tests {\n    proptest! {\n        #[test]\n        fn bytes_are_read(b in any::<u8>()) {\n"
        "            assert_eq!(b, b'{', \"{{\");\n        }\n        #[test]\n        fn and_these(b in any::<u8>()) {}\n"
        "    }\n\n    #[test]\n    fn as_a_statement() {\n        proptest!(|(b in any::<u8>())| { drop(b); });\n    }\n}\n"
    )
    told = "\n".join(missing_and_gone(tmp_path / "crates"))
    for name in ("bytes_are_read", "and_these", "as_a_statement"):
        assert f"crates/new/src/lib.rs has the property test {name}, which is in no table" in told
    assert "not_this" not in told and "nor_this" not in told
    assert "no such property test" in told, "what is listed is not there"


def test_listed_tests_take_the_number_of_inputs_that_is_asked_for() -> None:
    """`ProptestConfig::with_cases(64)` would go before $PROPTEST_CASES."""
    fixed = []
    for file in PARSERS:
        text = (REPOSITORY / file).read_text(encoding="utf-8")
        fixed += [f"{file}: {found[0]}" for found in re.finditer(r"with_cases\(\s*\d+\s*\)", text)]
    assert not fixed, f"take the number from the environment (as crates/agent/src/ring_tests.rs): {fixed}"


def test_every_file_of_fuzz_takes_the_number_of_inputs_that_is_asked_for() -> None:
    for path in sorted((REPOSITORY / "fuzz").glob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        if path.name != Path(__file__).name and ("hypothesis" in text or "random" in text):
            assert "WAYSTAGE_FUZZ_EXAMPLES" in text, (
                f"{path.name} always tries the same few inputs: see the others"
            )
