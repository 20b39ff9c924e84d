"""Compares results of pytest with the tests that are known not to pass."""
import sys
import xml.etree.ElementTree as xml

results, expected_path = sys.argv[1:]
outcomes = {}
for case in xml.parse(results).iter("testcase"):
    name = f"{case.get('classname').rsplit('.', 1)[-1]}::{case.get('name')}"
    children = {child.tag for child in case}
    outcomes[name] = "skipped" if "skipped" in children else "failed" if children & {"failure", "error"} else "passed"
expected = {}
for line in open(expected_path):
    if line.strip() and not line.startswith("#"):
        name, reason = line.rstrip("\n").split("\t")
        expected[name] = reason
failed = {name for name, outcome in outcomes.items() if outcome == "failed"}
passed = {name for name, outcome in outcomes.items() if outcome == "passed"}
out_of_reach = {name for name, reason in expected.items() if reason.startswith("out of reach")}
new = sorted(failed - expected.keys())
mended = sorted(passed & expected.keys())
for name in new:
    print(f"FAIL: {name} fails, and expected.tsv does not say why")
for name in mended:
    print(f"FAIL: {name} passes, so its line in expected.tsv is to go")
valid = (failed | passed) - out_of_reach
print(f"llama.cpp's tests of its server: {len(passed)} of {len(valid)} that can be run here pass, {len(valid) - len(passed)} have a reason")
sys.exit(1 if new or mended else 0)
