# An image for NVIDIA's GPUs: keras-strategies and TensorFlow with its CUDA libraries from the package
# index. Without Horovod, so workers take TensorFlow's collectives, which use NCCL between GPUs.
#
#   docker build -f docker/gpu.Dockerfile -t keras-strategies:gpu .
FROM python:3.11-slim
WORKDIR /source
COPY . .
RUN python -m venv /opt/job \
    && PIP_CONSTRAINT=/source/constraints.txt /opt/job/bin/pip install --no-cache-dir \
        . "tensorflow[and-cuda]" \
    && rm -rf /source
ENV PATH=/opt/job/bin:$PATH
WORKDIR /job
# Put the script beside this file: COPY train.py .
CMD ["tf-config", "doctor"]
