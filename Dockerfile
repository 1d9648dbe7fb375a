# Two images from one file: `web` answers requests, `worker` runs mechanisms and is the only one with torch.

FROM python:3.11-slim AS base
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONUNBUFFERED=1
RUN useradd --system --uid 10001 --create-home stint && install --directory --owner=stint /var/lib/stint
WORKDIR /opt/stint
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY accountant accountant
COPY trainers trainers
COPY service service
COPY migrations migrations

FROM base AS web
RUN pip install -c constraints.txt ".[service]"
USER stint
# The folder holds the signing key, and PostgreSQL too where DATABASE_URL is not set: it must outlive the container.
ENV STINT_HOST=0.0.0.0 STINT_PORT=8000 STINT_DATA=/var/lib/stint
VOLUME /var/lib/stint
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/readyz', timeout=4)"]
CMD ["stint", "serve"]

FROM base AS worker
RUN pip install -c constraints.txt ".[service,trainers]"
USER stint
# The same folder as web's: its secrets, and what is published. Data to train on is mounted at its `inputs`.
ENV STINT_DATA=/var/lib/stint
VOLUME /var/lib/stint
CMD ["stint", "worker"]
