#!/usr/bin/env bash
# Install Horovod for a Python: the wheel in the cache, or one built now from PyPI's source against that
# Python's torch (Gloo on the CPU, no MPI). `make horovod` runs it for .venv.
#
#   scripts/build_horovod.sh [python, by default .venv/bin/python]
#
# Wheels are kept in $HOROVOD_WHEEL_CACHE, by default ${XDG_CACHE_HOME:-~/.cache}/tunelight/wheels.
# $CXX names another compiler than g++.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=$(realpath --canonicalize-missing --no-symlinks -- "${1:-$root/.venv/bin/python}")
constraints=$root/constraints.txt
cache=${HOROVOD_WHEEL_CACHE:-}
if [[ -z $cache ]]; then
  cache=${XDG_CACHE_HOME:-${HOME:?is not set, and neither is HOROVOD_WHEEL_CACHE}/.cache}/tunelight/wheels
fi
cache=$(realpath --canonicalize-missing -- "$cache")
# Python puts the current folder before the libraries: let it be this one, and not whatever holds a json.py.
cd "$root"

# What Horovod imports, and what its build needs: its setup.py imports the package itself, and on Python 3.12
# and newer it is setuptools that provides the distutils which both still use.
needed=(cffi cloudpickle packaging psutil pyyaml setuptools)
# CMake 4 refuses the oldest policies that Horovod's copy of Gloo asks for, unless it is told this minimum.
oldest_cmake=3.13
oldest_policies=3.5
# A compile of one of its files takes about 1 GB: not as many at once as there are cores.
most_jobs=4

say() { printf 'horovod: %s\n' "$*" >&2; }
fail() {
  say "$@"
  exit 1
}

pip() { "$python" -m pip --disable-pip-version-check "$@"; }

# Prints the version to which constraints.txt pins a package.
pinned() {
  local version
  version=$(sed -n "s/^$1==//p" "$constraints")
  [[ -n $version ]] || fail "constraints.txt pins no version of $1"
  printf '%s' "$version"
}

# Horovod's own import only prints a warning when its library is missing or does not load, so ask that library.
works() {
  "$python" - "$version" <<'PY'
import importlib.metadata
import sys

found = importlib.metadata.version("horovod")
if found != sys.argv[1]:
    sys.exit(f"horovod {found} is installed, not {sys.argv[1]}")

import horovod.torch as hvd

if not hvd.gloo_built():
    sys.exit("this Horovod was built without Gloo")
if hvd.mpi_built():
    sys.exit("this Horovod was built with MPI, which tunelight does not want")
PY
}

install_wheel() { pip install --quiet --no-deps --force-reinstall "$1"; }

cmake_is_new_enough() {
  local found
  command -v "$1" >/dev/null || return 1
  found=$("$1" --version | sed -n '1s/.* version \([0-9.]*\).*/\1/p')
  [[ -n $found && $(printf '%s\n' "$oldest_cmake" "$found" | sort --version-sort | head -n 1) == "$oldest_cmake" ]]
}

# Names everything that is missing at once, before anything is fetched. Sets `compiler`, an array.
check_tools() {
  local include missing=()
  read -ra compiler <<<"${CXX:-g++}"
  command -v "${compiler[0]}" >/dev/null || missing+=("the C++ compiler ${compiler[0]} (apt: g++)")
  command -v make >/dev/null || missing+=("the command make (apt: make)")
  include=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')
  [[ -f $include/Python.h ]] || missing+=("Python's header Python.h in $include (apt: python3-dev)")
  if ((${#missing[@]})); then
    say "Horovod has no wheel on PyPI and is built from source, for which this machine lacks:"
    printf '  - %s\n' "${missing[@]}" >&2
    fail "install what is missing, for instance: apt-get install g++ make cmake python3-dev"
  fi
}

# Sets `cmake`: the machine's own, or else PyPI's, put into the environment.
find_cmake() {
  cmake=$(command -v cmake || true)
  if [[ -n $cmake ]] && cmake_is_new_enough "$cmake"; then return; fi
  say "found no cmake of $oldest_cmake or newer: installing PyPI's (apt: cmake)"
  pip install --quiet -c "$constraints" cmake || fail "cmake is missing, and pip could not install it (apt: cmake)"
  cmake=$(dirname "$python")/cmake
  cmake_is_new_enough "$cmake" || fail "the cmake that pip installed, $cmake, does not run (apt: cmake)"
}

# Builds into a temporary folder, and moves the whole wheel into the cache: a killed build leaves none there.
build() {
  local jobs built name
  local -a compiler
  local cmake
  check_tools
  find_cmake
  jobs=$(nproc)
  ((jobs <= most_jobs)) || jobs=$most_jobs
  # Its CMake asks for C++14, which torch's headers no longer accept; of several -std the last one counts. So it is
  # with its -O3 and -g, which take two fifths of the build's time, and its loops are not what training waits for.
  printf '#!/usr/bin/env bash\nexec%s "$@" -std=c++17 -g0 -O1\n' "$(printf ' %q' "${compiler[@]}")" >"$work/c++"
  chmod +x "$work/c++"
  mkdir "$work/tmp" "$work/wheel"
  say "building $version against torch $torch with ${compiler[*]} and $jobs jobs: some minutes; log: $log"
  if ! (
    # Neither a user's settings for some other Horovod nor those of the make that called may steer this build.
    for name in "${!HOROVOD_@}"; do unset "$name"; done
    unset MAKELEVEL MFLAGS MAKEOVERRIDES
    export TMPDIR=$work/tmp CXX=$work/c++ MAKEFLAGS=-j$jobs
    export CMAKE_GENERATOR='Unix Makefiles' CMAKE_POLICY_VERSION_MINIMUM=$oldest_policies
    export HOROVOD_WITH_PYTORCH=1 HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1
    export HOROVOD_WITH_GLOO=1 HOROVOD_WITHOUT_MPI=1 HOROVOD_CPU_OPERATIONS=GLOO HOROVOD_CMAKE=$cmake
    # Otherwise it takes AVX and more from this machine's CPU, and the cache may serve others. This changes nothing.
    export HOROVOD_BUILD_ARCH_FLAGS=-fPIC
    # pip keeps wheels that it built too, by what they were built from, not by the torch: no use of that cache.
    pip wheel --verbose --use-pep517 --no-build-isolation --no-deps --no-binary horovod --no-cache-dir \
      --wheel-dir "$work/wheel" "horovod==$version"
  ) >"$log" 2>&1; then
    # The compiler's or CMake's own words come well before the end, which is pip's and setuptools' traceback.
    tail -n 30 "$log" >&2
    say "the first errors of the build:"
    grep -m 15 -E '(^|[ :])(fatal )?error: |CMake Error|: not found|Killed' "$log" | cut -c 1-300 >&2 || true
    fail "the build failed; above are the end and the first errors of $log"
  fi
  built=("$work"/wheel/horovod-"$version"-*.whl)
  [[ ${#built[@]} -eq 1 && -f ${built[0]} ]] || fail "the build left no wheel; see $log"
  # From another file system, a move alone would be a copy that can be cut short.
  wheel=$folder/${built[0]##*/}
  mkdir -p "$folder"
  cp -- "${built[0]}" "$wheel.$$.part"
  mv -f -- "$wheel.$$.part" "$wheel"
}

[[ -x $python ]] || fail "there is no Python at $python: run make setup first"
version=$(pinned horovod)
pip install --quiet -c "$constraints" "${needed[@]}"
key=$("$python" -c 'import sysconfig, torch; print(torch.__version__, sysconfig.get_config_var("SOABI"))') ||
  fail "Horovod is built against torch, which $python cannot import: run make setup first"
torch=${key% *}
folder=$cache/horovod-$version-torch-$torch-${key#* }
log=$(dirname "$(dirname "$python")")/horovod-build.log

work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

shopt -s nullglob
cached=("$folder"/horovod-"$version"-*.whl)
if ((${#cached[@]})); then
  if install_wheel "${cached[0]}" && works; then
    say "installed $version for torch $torch from $folder"
    exit 0
  fi
  say "the wheel in $folder does not work: building it again"
  rm -f -- "${cached[@]}"
fi

build
install_wheel "$wheel"
works || fail "the wheel just built does not work; its build log is $log"
say "built and installed $version for torch $torch; the wheel is kept in $folder"
