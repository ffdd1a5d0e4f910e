# The service without its own PostgreSQL: give it DATABASE_URL.
# Build: docker build -t chat-workflow .     Run: see docker-compose.yml

FROM python:3.11-slim-bookworm AS build
WORKDIR /src
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PYTHONDONTWRITEBYTECODE=1
# What changes seldom comes first: this layer is kept while only the code changes.
COPY requirements/runtime.txt requirements/build.txt requirements/
RUN python -m venv --without-pip /opt/venv \
    && python -m pip --python /opt/venv/bin/python install --require-hashes -r requirements/runtime.txt \
    && python -m pip install --require-hashes -r requirements/build.txt
COPY pyproject.toml README.md LICENSE ./
COPY alembic alembic
COPY app app
RUN python -m pip wheel --no-deps --no-build-isolation --wheel-dir dist . \
    && python -m pip --python /opt/venv/bin/python install --no-deps dist/*.whl \
    && python -m compileall -q /opt/venv

FROM python:3.11-slim-bookworm
# Nothing here installs anything any more.
RUN python -m pip uninstall --yes --quiet pip setuptools wheel \
    && groupadd --system --gid 10001 chat \
    && useradd --system --uid 10001 --gid 10001 --no-create-home --shell /usr/sbin/nologin chat
COPY --from=build /opt/venv /opt/venv
ENV PATH="/opt/venv/bin:$PATH" \
    PYTHONUNBUFFERED=1 \
    CHAT_HOST=0.0.0.0 \
    CHAT_PORT=8000 \
    CHAT_AUTH=keys \
    CHAT_LOG_FORMAT=json
USER 10001:10001
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s --retries=3 \
    CMD ["python", "-c", "import os, urllib.request; urllib.request.urlopen(f\"http://127.0.0.1:{os.environ['CHAT_PORT']}/health/ready\", timeout=2.5)"]
# In exec form, so that signals reach the server itself.
ENTRYPOINT ["chat-workflow"]
CMD ["serve"]
