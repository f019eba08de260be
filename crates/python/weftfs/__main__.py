"""`python -m weftfs [URL]`: what this installation is, and how it reaches a file system."""

import os
import sys

import weftfs


def main():
    print(f"weftfs {weftfs.__version__}, {os.path.dirname(weftfs.__file__)}, Python {sys.version.split()[0]}")
    for name in ("numpy", "fsspec", "zarr", "torch"):
        try:
            print(f"  {name} {__import__(name).__version__}")
        except ImportError:
            print(f"  {name}: not installed")
    url = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("WEFT_URL")
    if not url:
        print("no file system: give a URL (weft://HOST:PORT/), or set WEFT_URL")
        return 0
    try:
        fs = weftfs.connect(url)
        space = fs.statfs()
    except (OSError, ValueError) as error:
        print(f"{url}: {error}", file=sys.stderr)
        return 1
    print(f"{url}: {space.free_bytes / 2**30:.1f} GiB free of {space.space_bytes / 2**30:.1f}, {space.files} files")
    for server, role, transport, why in fs.transports():
        print(f"  {server} ({role}): {transport or 'not connected'}{f' ({why})' if why else ''}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
