#!/usr/bin/env bash
# What a continuous integration service runs in a clean clone: the whole graph in small, the documentation, the tests.
set -euo pipefail
cd "$(dirname "$0")/.."
make demo PROFILE=smoke
.venv/bin/paco profile use storybook
make docs
make test
