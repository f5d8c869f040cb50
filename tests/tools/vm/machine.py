# SPDX-License-Identifier: Apache-2.0
"""A virtual machine for a test that needs hardware which this one has not: QEMU without KVM, the kernel of Debian's package, and
this host's own root, read-only, over 9p. Nothing is installed in it and nothing of it stays.

A test calls run(); the command runs there as root with the paths that it has here. /run is writable there. Or it calls boot() with
the image of a root: that one's own init is started, and it ends by end().
"""
import os
import pathlib
import re
import shutil
import subprocess
import tempfile

TOP = pathlib.Path(__file__).resolve().parent.parent.parent.parent
QEMU = "qemu-system-x86_64"
KERNEL_DIR = TOP / "build-kernel"  # ./run unpacks the package here
FAILED = 125                       # init.c: the machine did not come as far as the command
BASE = ["crc32_generic", "9pnet_virtio", "9p", "virtio_pci"]
DISK = ["crc32_generic", "crc32c_generic", "virtio_pci", "virtio_blk", "ext4"]
EXIT_PORT = 0xf4
# tsc=reliable: else Linux takes the emulated HPET for its clock, and each look at the clock is a system call of microseconds.
CMDLINE = "console=ttyS0 quiet loglevel=4 panic=-1 rdinit=/init tsc=reliable"


class Absent(Exception):
    """What this host lacks; a reason to skip."""


class Kernel:
    """An image and its modules, in an unpacked package or installed."""

    def __init__(self, image, modules):
        self.image, self.modules = image, modules
        self.paths = {p.name.split(".")[0].replace("-", "_"): p for p in modules.rglob("*.ko")}
        builtin = modules / "modules.builtin"
        lines = builtin.read_text().splitlines() if builtin.exists() else []
        self.builtin = {pathlib.Path(line).stem.replace("-", "_") for line in lines}

    def order(self, names):
        """Paths of modules, each after those that it depends on."""
        out = []

        def add(name):
            name = name.replace("-", "_")
            if name in self.builtin:
                return
            if name not in self.paths:
                raise Absent(f"the kernel {self.image.name} has no module {name}")
            found = re.search(rb"\0depends=([^\0]*)\0", self.paths[name].read_bytes())
            for other in (found.group(1).decode() if found else "").split(","):
                if other:
                    add(other)
            if self.paths[name] not in out:
                out.append(self.paths[name])
        for name in names:
            add(name)
        return out


def kernel_find():
    """The newest kernel under build-kernel/, else one that is installed."""
    for top in (KERNEL_DIR, pathlib.Path("/")):
        for image in sorted(top.glob("boot/vmlinuz-*-amd64"), reverse=True):
            modules = top / "lib/modules" / image.name.removeprefix("vmlinuz-")
            if any(modules.rglob("9p.ko")):
                return Kernel(image, modules)
    raise Absent("no kernel package: ./run tests --full unpacks linux-image-amd64 into build-kernel/")


# --- initramfs --------------------------------------------------------------------------------------------

def cpio_entry(name, mode, data, number):
    """One file of the newc format."""
    name = name.encode() + b"\0"
    fields = (number, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name), 0)
    head = b"070701" + b"".join(b"%08X" % f for f in fields) + name
    return head + b"\0" * (-len(head) % 4) + data + b"\0" * (-len(data) % 4)


def initramfs(init, modules, args, command):
    """init, the modules in order with their parameters, and the command."""
    lines = [f"/{p.name} {args.get(p.name.split('.')[0].replace('-', '_'), '')}".strip() for p in modules]
    files = {"init": init.read_bytes(), "modules": ("\n".join(lines) + "\n").encode(), "command": "\n".join(command).encode()}
    files |= {p.name: p.read_bytes() for p in modules}
    out = cpio_entry("root", 0o040755, b"", 1) + cpio_entry("dev", 0o040755, b"", 2)
    for number, (name, data) in enumerate(files.items(), 3):
        out += cpio_entry(name, 0o100755, data, number)
    return out + cpio_entry("TRAILER!!!", 0, b"", 0)


# --- the machine ------------------------------------------------------------------------------------------

def run(init, command, devices=(), modules=(), module_args=None, cmdline="", cpus=2, memory_mb=1536, timeout_s=90):
    """The command's exit status in a machine of its own, and all that was on its console. None: it did not end in time, or
    the machine broke. Absent: this host cannot."""
    root = ("-virtfs", "local,path=/,mount_tag=root,security_model=none,readonly=on,multidevs=remap")
    # The stages of a bus's drivers: what 9p needs comes first.
    return started(init, command, [*root, *devices], BASE + list(modules), module_args, cmdline, cpus, memory_mb, timeout_s)


def boot(init, image, modules=(), cmdline="", cpus=2, memory_mb=1024, timeout_s=600):
    """As run(): what a program there gave to end(). @image, of ext4, stays as it is."""
    disk = ("-drive", f"file={image},format=raw,if=virtio,snapshot=on")
    return started(init, (), disk, DISK + list(modules), None, cmdline, cpus, memory_mb, timeout_s)


def end(status):
    """Within a machine, as root: end it."""
    os.sync()
    with open("/dev/port", "wb", buffering=0) as port:
        os.pwrite(port.fileno(), bytes([status]), EXIT_PORT)


def started(init, command, devices, modules, module_args, cmdline, cpus, memory_mb, timeout_s):
    if not shutil.which(QEMU):
        raise Absent(f"no {QEMU} here (package qemu-system-x86)")
    kernel = kernel_find()
    ordered = kernel.order(modules)
    with tempfile.TemporaryDirectory() as folder:
        initrd = pathlib.Path(folder, "initrd")
        initrd.write_bytes(initramfs(pathlib.Path(init), ordered, module_args or {}, [str(w) for w in command]))
        words = [QEMU, "-accel", "tcg,thread=multi", "-machine", "q35", "-cpu", "max", "-smp", str(cpus), "-m", str(memory_mb),
                 "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-serial", "stdio",
                 "-kernel", str(kernel.image), "-initrd", str(initrd), "-append", f"{CMDLINE} {cmdline}",
                 "-device", f"isa-debug-exit,iobase={EXIT_PORT:#x},iosize=0x04", *devices]
        proc = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                preexec_fn=os.setsid)
        try:
            out, _ = proc.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            proc.kill()
            out, _ = proc.communicate()
            return None, out.decode(errors="replace").replace("\r", "")
    # isa-debug-exit makes 2 * status + 1 of it; anything else is a reset or an error of QEMU's own.
    status = proc.returncode >> 1 if proc.returncode & 1 and proc.returncode > 0 else None
    return status, out.decode(errors="replace").replace("\r", "")
