#!/usr/bin/env bash
# Installs Chromium for the tests that look at HTML pages, where Debian's packages can be installed.
# Nothing but those tests needs it: without it they are skipped, by name and with the reason.
set -euo pipefail

for name in chromium chromium-browser google-chrome; do
    if command -v "$name"; then
        exit 0
    fi
done
if [ "$(id -u)" = 0 ] && command -v apt-get > /dev/null; then
    if (apt-get update && apt-get install --yes --no-install-recommends chromium fonts-dejavu-core) > /dev/null 2>&1; then
        command -v chromium
        exit 0
    fi
    echo "Chromium could not be installed: the tests that look at pages are skipped"
else
    echo "Chromium is not installed and cannot be from here: the tests that look at pages are skipped"
fi
