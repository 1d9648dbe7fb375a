"""The images and the composition agree with each other, as far as reading them can tell."""

import re
from pathlib import Path

import yaml


def test_compose_builds_the_targets_of_the_dockerfile(checkout: Path) -> None:
    text = (checkout / "Dockerfile").read_text(encoding="utf-8")
    stages = dict(re.findall(r"^FROM \S+ AS (\w+)\n(.*?)(?=^FROM |\Z)", text, re.MULTILINE | re.DOTALL))
    assert set(stages) == {"base", "web", "worker"}
    services = yaml.safe_load((checkout / "docker-compose.yml").read_text(encoding="utf-8"))["services"]
    assert set(services) == {"postgres", "web", "worker"}
    assert services["postgres"]["image"] == "postgres:18"
    for name in ("web", "worker"):
        assert services[name]["build"]["target"] == name
        assert services[name]["depends_on"]["postgres"]["condition"] == "service_healthy"
        assert "-c constraints.txt" in stages[name]
        assert re.search(r"^USER (?!root)", stages[name], re.MULTILINE)
    assert "trainers" not in stages["web"], "a web process never has torch"


def test_the_images_get_every_file_they_copy(checkout: Path) -> None:
    text = (checkout / "Dockerfile").read_text(encoding="utf-8")
    copied = {word for line in re.findall(r"^COPY (.+) \S+$", text, re.MULTILINE) for word in line.split()}
    admitted = {
        line[1:]
        for line in (checkout / ".dockerignore").read_text(encoding="utf-8").splitlines()
        if line.startswith("!")
    }
    assert copied == admitted
    assert all((checkout / name).exists() for name in copied)
