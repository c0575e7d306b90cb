#!/usr/bin/env bash
# Print the path of a Chromium for tests/browser: TUNELIGHT_BROWSER, one on PATH, or that of Debian's or Ubuntu's
# packages, which are unpacked into a cache (some 150 MB to fetch, the first time) and not installed. Exit code 1 says that
# none can be had here.
set -euo pipefail

if [[ -n ${TUNELIGHT_BROWSER:-} ]]; then
  echo "$TUNELIGHT_BROWSER"
  exit
fi
for name in chromium chromium-browser google-chrome google-chrome-stable; do
  if command -v "$name"; then exit; fi
done

place=${XDG_CACHE_HOME:-$HOME/.cache}/tunelight/chromium
starter=$place/chromium.sh
if [[ -x $starter ]] && "$starter" --version >/dev/null 2>&1; then
  echo "$starter"
  exit
fi
if [[ -n $(find "$place.failed" -mmin -60 2>/dev/null) ]]; then
  echo "No Chromium: its packages could not be fetched within the last hour. To try again, remove $place.failed." >&2
  exit 1
fi
if ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then
  echo "No Chromium: none is on PATH, and there is no apt-get here to fetch one. Set TUNELIGHT_BROWSER." >&2
  exit 1
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
mkdir -p lists/partial cache/archives/partial unpacked
# Package lists of our own, so that nothing of the system's is changed, and no root is needed.
own=(-o "Dir::State::lists=$work/lists" -o "Dir::Cache=$work/cache" -o Debug::NoLocking=1 -o Acquire::Retries=2
  -o APT::Sandbox::User="" -o Acquire::http::Timeout=20)
{
  timeout 120 apt-get "${own[@]}" -q update
  packages=$(apt-get "${own[@]}" -q --no-install-recommends --simulate install chromium fonts-liberation |
    sed -n 's/^Inst \([^ ]*\).*/\1/p')
  # shellcheck disable=SC2086 # one word for each package
  timeout 420 apt-get "${own[@]}" -q download $packages
  for package in ./*.deb; do dpkg-deb -x "$package" unpacked; done
} >log 2>&1 || {
  echo "No Chromium: none is on PATH, and its packages cannot be fetched:" >&2
  tail -3 log >&2
  mkdir -p "$(dirname "$place")"
  touch "$place.failed"
  exit 1
}
mkdir -p "$(dirname "$place")"
rm -rf "$place"
mv unpacked "$place"
libraries=$(find "$place" -name '*.so*' -printf '%h\n' | sort -u | paste -sd:)
printf '#!/bin/sh\nexport LD_LIBRARY_PATH=%q\nexec %q "$@"\n' "$libraries" "$place/usr/lib/chromium/chromium" >"$starter"
chmod +x "$starter"
"$starter" --version >/dev/null || {
  echo "No Chromium: the one in $place does not start." >&2
  exit 1
}
echo "$starter"
