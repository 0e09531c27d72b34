# An image for CPUs: keras-strategies, the TensorFlow of constraints.txt, and Horovod built for it.
#
#   docker build -f docker/cpu.Dockerfile -t keras-strategies:cpu .
FROM python:3.11-slim AS build
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ make \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY . .
ENV PIP_CONSTRAINT=/source/constraints.txt PIP_NO_CACHE_DIR=1
RUN python -m venv /opt/job \
    && /opt/job/bin/pip install . \
    && /opt/job/bin/tf-config install-horovod

FROM python:3.11-slim
COPY --from=build /opt/job /opt/job
ENV PATH=/opt/job/bin:$PATH
WORKDIR /job
# Put the script beside this file: COPY train.py .
CMD ["tf-config", "doctor"]
