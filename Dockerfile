# cachemark on a CPU or on NVIDIA GPUs, without root:
#
#   docker build --tag cachemark:cpu .
#   docker build --tag cachemark:cuda --build-arg DEVICE=cuda .
#   docker run --rm --volume "$PWD:/data" --user "$(id -u):$(id -g)" cachemark:cpu run demo --threads 1
#   docker run --rm --volume "$PWD:/data" --user "$(id -u):$(id -g)" --gpus all cachemark:cuda run demo --device cuda
#
# The digest pins the base; the tag beside it is for people.
ARG PYTHON=python:3.11.16-slim-bookworm@sha256:a36c24f9cbdf4fd0f52d67f0823eeac19c2028c637cecc392d97f980d4fec56b

FROM ${PYTHON} AS build
ARG DEVICE=cpu
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
WORKDIR /source
RUN python -m venv /opt/cachemark
COPY constraints.txt ci/locked-image.txt ./
# Every file has a hash, except torch and torchvision of a CPU image: PyPI's are built for CUDA, and their index publishes no lock. Each
# name has one index.
RUN case "$DEVICE" in \
      cpu) /opt/cachemark/bin/pip install --no-deps --constraint constraints.txt --index-url https://download.pytorch.org/whl/cpu \
             torch torchvision && \
           grep -vE '^(torch|torchvision|triton|nvidia-[^m]|cuda-)' locked-image.txt > locked.txt ;; \
      cuda) cp locked-image.txt locked.txt ;; \
      *) echo "DEVICE is cpu or cuda, not $DEVICE." >&2; exit 1 ;; \
    esac && \
    /opt/cachemark/bin/pip install --no-deps --require-hashes --requirement locked.txt
COPY pyproject.toml setup.py README.md LICENSE ./
COPY suite suite
RUN /opt/cachemark/bin/pip install --no-deps --no-build-isolation '.[quality]'

FROM ${PYTHON}
ARG DEVICE=cpu
# git: commits of results and `compare --commits`. gcc: Triton compiles a launcher for each kernel on a GPU.
# Debian removes old versions of packages, so they are not pinned.
# hadolint ignore=DL3008
RUN if [ "$DEVICE" = cuda ]; then set -- gcc libc6-dev; else set --; fi && \
    apt-get update && \
    apt-get install --no-install-recommends --yes git "$@" && \
    rm -rf /var/lib/apt/lists/*
RUN useradd --create-home --uid 1000 cachemark && install --directory --owner cachemark /data
COPY --from=build /opt/cachemark /opt/cachemark
ENV PATH=/opt/cachemark/bin:$PATH NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 1000
WORKDIR /data
ENTRYPOINT ["cachemark"]
CMD ["--help"]
