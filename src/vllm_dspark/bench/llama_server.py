"""llama.cpp's server, plain or with its own DSpark, from the package xllamacpp.

Runs as a process of its own: ``python -m vllm_dspark.bench.llama_server --model X.gguf --port N``.
"""

import argparse
import os
import sys
import threading
from pathlib import Path

import psutil


def make_f32_gguf(source: Path, target: Path) -> Path:
    """Write a GGUF with float32 tensors of the same values, once.

    llama.cpp multiplies quantised weights with 8-bit activations, so its text would differ.
    """
    from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter
    from gguf.quants import dequantize

    if target.is_file():
        return target
    reader = GGUFReader(source)
    part = target.with_suffix(".part")
    writer = GGUFWriter(part, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type"):
            continue
        item = field.types[-1] if len(field.types) > 1 else None
        writer.add_key_value(name, field.contents(), field.types[0], sub_type=item)
    for tensor in reader.tensors:
        values = tensor.data
        if tensor.tensor_type != GGMLQuantizationType.F32:
            values = dequantize(tensor.data, tensor.tensor_type)
        writer.add_tensor(tensor.name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    part.rename(target)
    return target


def find_target(model: Path) -> Path | None:
    """The float32 GGUF beside a demo model's folder, made where only a quantised one lies."""
    files = sorted((model / "gguf").glob("*.gguf"))
    ready = [one for one in files if one.name.endswith(".F32.gguf")]
    if ready or not files:
        return ready[0] if ready else None
    name = files[0].name.removesuffix(".gguf").rsplit(".", 1)[0]
    return make_f32_gguf(files[0], files[0].with_name(f"{name}.F32.gguf"))


def main() -> int:
    """Serve until the parent process ends."""
    import xllamacpp

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--clients", type=int, default=1)
    parser.add_argument("--context", type=int, default=2048, help="tokens per client")
    parser.add_argument("--draft", default="")
    parser.add_argument("--num-drafts", type=int, default=7)
    args = parser.parse_args()
    params = xllamacpp.CommonParams()
    params.model.path = args.model
    params.port = args.port
    params.n_parallel = args.clients
    params.n_ctx = args.context * args.clients
    params.cpuparams.n_threads = os.cpu_count() or 1
    params.cache_ram_mib = 0
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_ENABLED
    if args.draft:
        kind = xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_DSPARK
        params.speculative.types = [kind]
        params.speculative.draft.mparams.path = args.draft
        params.speculative.draft.n_max = args.num_drafts
    server = xllamacpp.Server(params)
    print(f"listening at {server.listening_address}", flush=True)  # noqa: T201 - the log
    parent = psutil.Process().parent()
    while parent is not None and parent.is_running():
        threading.Event().wait(1.0)
    return 0


if __name__ == "__main__":
    sys.exit(main())
