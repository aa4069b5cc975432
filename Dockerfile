# fabrictime in a container: workers, page, topic creation. Built in one stage, run in another without compiler.
FROM python:3.11.13-slim-bookworm AS build
RUN apt-get update \
 && apt-get install -y --no-install-recommends gcc libc6-dev \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY requirements.lock ./
RUN pip download --no-cache-dir --require-hashes -r requirements.lock -d /wheels \
 && pip install --no-cache-dir --no-index --find-links /wheels scikit-build-core cython cmake ninja \
      fastavro grafana-foundation-sdk typing-extensions
COPY pyproject.toml CMakeLists.txt README.md LICENSE ./
COPY schemas schemas
COPY native native
COPY producers producers
COPY streams streams
COPY actuators actuators
COPY grafana grafana
COPY fabrictime fabrictime
COPY clients clients
RUN pip wheel --no-cache-dir --no-deps --no-build-isolation -w /dist . \
 && python -m venv /venv \
 && /venv/bin/pip install --no-cache-dir --no-index --find-links /wheels "$(echo /dist/*.whl)[server,kubernetes,notify,otlp,registry]" \
 && /venv/bin/pip uninstall -y pip setuptools

FROM python:3.11.13-slim-bookworm
RUN groupadd --gid 10001 fabrictime && useradd --uid 10001 --gid 10001 --no-create-home fabrictime \
 && install -d -o 10001 -g 10001 /dashboards /alert-rules
COPY --from=build /venv /venv
COPY docs /usr/share/doc/fabrictime
COPY docker/group_health.py /opt/fabrictime/group_health.py
ENV PATH=/venv/bin:$PATH PYTHONUNBUFFERED=1 HOME=/tmp
USER 10001:10001
WORKDIR /tmp
ENTRYPOINT ["/venv/bin/python", "-I", "-m", "fabrictime"]
CMD ["--help"]
