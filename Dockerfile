# Two images from one file: `web` answers requests, `worker` runs mechanisms and is the only one with torch.
# Both grow with the service; until it exists, their command says that there is nothing to serve.

FROM python:3.11-slim AS base
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONUNBUFFERED=1
RUN useradd --system --uid 10001 --create-home stint
WORKDIR /opt/stint
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY accountant accountant
COPY trainers trainers
COPY service service
COPY migrations migrations

FROM base AS web
RUN pip install -c constraints.txt ".[service]"
USER stint
CMD ["python", "-m", "service"]

FROM base AS worker
RUN pip install -c constraints.txt ".[service,trainers]"
USER stint
CMD ["python", "-m", "service"]
