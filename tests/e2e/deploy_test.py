"""The rules and the dashboard ask only for metrics that the server exports."""
import json
import pathlib
import re

DEPLOY = pathlib.Path(__file__).parents[2] / "deploy"


def exported(server):
    """Names of the server's series, with a request behind it so that all of them have one."""
    server.request("POST", "/v1/completions", json.dumps({"prompt": "x", "max_tokens": 2}))
    text = server.request("GET", "/metrics")[1]
    types = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.M))
    names = set()
    for name, kind in types.items():
        names |= {name + s for s in ("_bucket", "_sum", "_count")} if kind == "histogram" else {name}
    return names


def asked(text):
    return set(re.findall(r"(?<![\w:])(?:fathom:|http_requests)[a-zA-Z0-9_:]*", text))


def test_rules(server):
    text = (DEPLOY / "prometheus/fathom.rules.yml").read_text()
    recorded = set(re.findall(r"record: (\S+)", text))
    missing = asked(text) - recorded - exported(server)
    assert len(recorded) >= 4 and not missing


def test_dashboard(server):
    dashboard = json.loads((DEPLOY / "grafana/fathom.json").read_text())
    expressions = [t["expr"] for p in dashboard["panels"] for t in p["targets"]]
    expressions.append(dashboard["templating"]["list"][1]["query"])
    missing = set().union(*map(asked, expressions)) - exported(server)
    assert len(expressions) > 12 and not missing
    assert len({p["id"] for p in dashboard["panels"]}) == len(dashboard["panels"])
