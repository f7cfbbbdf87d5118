"""Small stand-ins for the CUDA libraries that PyTorch is linked against, for machines without a GPU (Linux, x86-64).

PyTorch's build on PyPI does not load without libcublas, libcudnn and eleven others, 2.7 GB, though nothing in them is
called where there is no GPU. A stand-in has the library's name and the functions that PyTorch expects of it, which do
nothing but return 1: an error code in every one of these libraries. CUDA's toolkit has such stubs of its driver.

They lie in PyTorch's own folder, where it looks last (RPATH), so the real libraries win as soon as they are installed.

Run by the environment's Python: writes what is missing, removes what is not needed any more, and then loads PyTorch's
libraries. The exit code is not 0 where that fails.
"""

import ctypes
import struct
import sysconfig
from pathlib import Path

#: How the names of the libraries begin, and of their functions. The driver (libcuda) is never replaced, and the runtime
#: (libcudart) is installed: PyTorch asks it whether there is a GPU.
LIBRARIES = ("libcu", "libnccl", "libnv")
NEVER_STUBBED = ("libcuda.so", "libcudart.so")
FUNCTIONS = (
    "cuFile",
    "cublas",
    "cudnn",
    "cufft",
    "cupti",
    "curand",
    "cusolver",
    "cusparse",
    "nccl",
    "nvrtc",
    "nvshmem",
)
#: All functions lie in this one and the others only ask for it. Otherwise the loader would expect the versions that
#: symbols of the real libraries have.
HOLDER = "libcuda_not_installed.so"

CODE = b"\xb8\x01\x00\x00\x00\xc3"  # mov eax, 1; ret
# Functions whose result is a text return this one: lea rax, [rip + 1]; ret
ERROR_TEXT = b"\x48\x8d\x05\x01\x00\x00\x00\xc3" + b"CUDA is not installed; run `make setup GPU=1`\0"
ERROR_TEXT_FUNCTIONS = ("String", "LastError")

# ELF: sizes, and the numbers of what is used, by the names of its specification (elf.h).
HEADER, SEGMENT, SYMBOL, PAGE = 64, 56, 24, 4096
SHT_DYNAMIC, SHT_DYNSYM, SHN_UNDEF = 6, 11, 0
PT_LOAD, PT_DYNAMIC, PT_GNU_STACK, READ_RUN, READ_WRITE = 1, 2, 0x6474E551, 5, 6
DT_NULL, DT_NEEDED, DT_HASH, DT_STRTAB, DT_SYMTAB, DT_STRSZ, DT_SYMENT, DT_SONAME = 0, 1, 4, 5, 6, 10, 11, 14
GLOBAL_FUNCTION, ANY_SECTION = 0x12, 1


def expected(library):
    """The libraries and the functions that a shared library wants of others."""
    data = library.read_bytes()
    start, count = struct.unpack_from("<Q", data, 0x28)[0], struct.unpack_from("<H", data, 0x3C)[0]
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, start + 64 * index) for index in range(count)]

    def rows(kind, form):
        """Of the section of this kind: each row, and where its names begin."""
        for _, section_type, _, _, offset, size, link, *_ in sections:
            if section_type == kind:
                for row in struct.iter_unpack(form, data[offset : offset + size]):
                    yield row, sections[link][4]

    def text(offset):
        return data[offset : data.index(b"\0", offset)].decode()

    libraries = {text(names + value) for (tag, value), names in rows(SHT_DYNAMIC, "<QQ") if tag == DT_NEEDED}
    symbols = rows(SHT_DYNSYM, "<IBBHQQ")
    return libraries, {text(names + name) for (name, _, _, section, *_), names in symbols if section == SHN_UNDEF}


def shared_library(name, needed=(), functions=()):
    """The bytes of a shared library that asks for the libraries ``needed`` and has these functions."""
    strings, at = b"\0", {}
    for word in (name, *needed, *functions):
        at[word] = len(strings)
        strings += word.encode() + b"\0"
    hashes = hash_table(functions)
    hashes_at = HEADER + 4 * SEGMENT
    symbols_at = hashes_at + len(hashes)
    strings_at = symbols_at + SYMBOL * (len(functions) + 1)
    code_at = strings_at + len(strings)
    symbols = bytes(SYMBOL)  # the first one is nothing, by the specification
    for word in functions:
        code = code_at + (len(CODE) if any(part in word for part in ERROR_TEXT_FUNCTIONS) else 0)
        symbols += struct.pack("<IBBHQQ", at[word], GLOBAL_FUNCTION, 0, ANY_SECTION, code, 0)
    body = hashes + symbols + strings + CODE + ERROR_TEXT

    end = hashes_at + len(body)
    dynamic_at = end + -end % PAGE  # in a page of its own, since the loader writes there
    dynamic = [(DT_NEEDED, at[word]) for word in needed] + [(DT_SONAME, at[name]), (DT_HASH, hashes_at)]
    dynamic += [(DT_STRTAB, strings_at), (DT_STRSZ, len(strings)), (DT_SYMTAB, symbols_at), (DT_SYMENT, SYMBOL)]
    dynamic = b"".join(struct.pack("<QQ", *pair) for pair in [*dynamic, (DT_NULL, 0)])

    header = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")  # 64 bits, little-endian; then: shared library, x86-64
    header += struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, HEADER, 0, 0, HEADER, SEGMENT, 4, 0, 0, 0)
    for kind, access, start, size in (
        (PT_LOAD, READ_RUN, 0, end),
        (PT_LOAD, READ_WRITE, dynamic_at, len(dynamic)),
        (PT_DYNAMIC, READ_WRITE, dynamic_at, len(dynamic)),
        (PT_GNU_STACK, READ_WRITE, 0, 0),
    ):
        header += struct.pack(
            "<IIQQQQQQ", kind, access, start, start, start, size, size, PAGE if kind == PT_LOAD else 8
        )
    return (header + body).ljust(dynamic_at, b"\0") + dynamic


def hash_table(functions):
    """Where the loader finds a function: ELF's own table, one bucket for each function."""
    buckets, chain = [0] * max(1, len(functions)), [0] * (len(functions) + 1)
    for index, word in enumerate(functions, 1):
        value = 0
        for byte in word.encode():
            value = (value << 4) + byte
            value = (value ^ (value & 0xF0000000) >> 24) & 0x0FFFFFFF
        bucket = value % len(buckets)
        chain[index], buckets[bucket] = buckets[bucket], index
    table = struct.pack(f"<{2 + len(buckets) + len(chain)}I", len(buckets), len(chain), *buckets, *chain)
    return table + bytes(-len(table) % 8)


def update(packages):
    """Write the stand-ins that are missing in ``packages``/torch/lib, and remove those of libraries that are there.

    Returns:
        the names of the libraries that stand-ins replace.
    """
    folder = packages / "torch" / "lib"
    symbols = [expected(library) for library in sorted(folder.glob("libtorch*.so"))]
    libraries = {
        n for names, _ in symbols for n in names if n.startswith(LIBRARIES) and not n.startswith(NEVER_STUBBED)
    }
    functions = sorted({n for _, names in symbols for n in names if n.startswith(FUNCTIONS)})
    ours = {
        path.name
        for path in folder.glob("lib*.so*")
        if path.stat().st_size < 10**6 and HOLDER.encode() in path.read_bytes()
    }
    for name in ours:
        (folder / name).unlink()  # never written over: a file here may be one with uv's cache
    absent = sorted(n for n in libraries if not any(packages.glob(f"nvidia/*/lib/{n}")) and not (folder / n).exists())
    for name in absent:
        (folder / name).write_bytes(shared_library(name, needed=[HOLDER]))
    if absent:
        (folder / HOLDER).write_bytes(shared_library(HOLDER, functions=functions))
    return absent


def main():
    packages = Path(sysconfig.get_path("purelib"))
    update(packages)
    for library in sorted((packages / "torch" / "lib").glob("libtorch*.so")):
        ctypes.CDLL(str(library))  # every function is looked for at once, as when Python imports a module


if __name__ == "__main__":
    main()
