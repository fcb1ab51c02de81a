"""Builds the wheel: the package and the library that was built before, nothing else. A PEP 517 backend without dependencies.

usage: python3 backend.py LIBRARY OUTPUT_DIRECTORY        (what `make wheel` runs)
Through pip the library is ../build/libdeepinfer.so, or that of --config-settings library=PATH.
"""
import base64
import hashlib
import pathlib
import sys
import sysconfig
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
NAME, VERSION, SONAME = "deepinfer", "0.1.0", "libdeepinfer.so.0"
METADATA = f"""Metadata-Version: 2.1
Name: {NAME}
Version: {VERSION}
Summary: Exact inference for DeepSeek-V4.1-Flash
License: Apache-2.0
Requires-Python: >=3.10
"""


def tag():
    return f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"


def contents(library):
    info = f"{NAME}-{VERSION}.dist-info"
    for path in sorted((HERE / NAME).iterdir()):
        if path.suffix == ".py" or path.name == "py.typed":
            yield f"{NAME}/{path.name}", path.read_bytes()
    yield f"{NAME}/{SONAME}", library.read_bytes()
    yield f"{info}/METADATA", METADATA.encode()
    yield f"{info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: {NAME}\nRoot-Is-Purelib: false\nTag: {tag()}\n".encode()


def write(library, folder):
    if not library.exists():
        raise SystemExit(f"{library} does not exist: build it first (make wheel does)")
    name = f"{NAME}-{VERSION}-{tag()}.whl"
    record = []
    with zipfile.ZipFile(pathlib.Path(folder, name), "w", zipfile.ZIP_DEFLATED) as wheel:
        for path, data in contents(library):
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record.append(f"{path},sha256={digest},{len(data)}\n")
            wheel.writestr(zipfile.ZipInfo(path, (1980, 1, 1, 0, 0, 0)), data, zipfile.ZIP_DEFLATED)
        path = f"{NAME}-{VERSION}.dist-info/RECORD"
        wheel.writestr(zipfile.ZipInfo(path, (1980, 1, 1, 0, 0, 0)), "".join(record) + f"{path},,\n", zipfile.ZIP_DEFLATED)
    return name


def get_requires_for_build_wheel(config_settings=None):
    return []


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    given = (config_settings or {}).get("library")
    return write(pathlib.Path(given) if given else HERE.parent / "build" / "libdeepinfer.so", wheel_directory)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    pathlib.Path(sys.argv[2]).mkdir(parents=True, exist_ok=True)
    print(pathlib.Path(sys.argv[2], write(pathlib.Path(sys.argv[1]), sys.argv[2])))
