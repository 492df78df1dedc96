# Two images: `docker build --target frontend -t pixelpod-frontend:0.1.0 .`, and the same with `group`.
# Both start with `pixelpod`, need no shell, and write nowhere but in /tmp; see docs/kubernetes.md.

FROM python:3.11-slim-bookworm AS build
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY pixelpod pixelpod
COPY service service
COPY workers workers
# Without pip in it: the image never installs anything.
RUN python -m venv --without-pip /opt/pixelpod

FROM build AS build-frontend
RUN pip --python /opt/pixelpod/bin/python install --no-cache-dir --constraint constraints.txt '.[service]' \
    && rm -r /opt/pixelpod/lib/python3.11/site-packages/workers

FROM build AS build-group
# An index with torch's builds for CPUs: a TPU host has no use for the gigabytes of CUDA that come without it.
ARG PIP_EXTRA_INDEX_URL
RUN pip --python /opt/pixelpod/bin/python install --no-cache-dir --constraint constraints.txt '.[tpu]'

FROM python:3.11-slim-bookworm AS run
# The user id below has no account: torch asks for a name, and takes this one.
ENV PATH=/opt/pixelpod/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    USER=pixelpod
WORKDIR /
USER 65532:65532
ENTRYPOINT ["pixelpod"]

FROM run AS frontend
COPY --from=build-frontend /opt/pixelpod /opt/pixelpod
EXPOSE 7860 7870 9090
CMD ["serve"]

FROM run AS group
USER 0:0
# torch_tpu asks for tcmalloc; its transfers allocate much.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends libtcmalloc-minimal4=2.10-1 \
    && rm -rf /var/lib/apt/lists/*
USER 65532:65532
COPY --from=build-group /opt/pixelpod /opt/pixelpod
ENV LD_PRELOAD=libtcmalloc_minimal.so.4
EXPOSE 7861 7871 9091
CMD ["group"]
