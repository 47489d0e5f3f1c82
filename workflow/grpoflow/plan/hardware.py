"""GPUs of which the plan knows the numbers. Rates are per second, bandwidths in bytes per second and both
directions."""

from dataclasses import dataclass

GIB = 2**30


@dataclass(frozen=True)
class Gpu:
    """One GPU model.

    Attributes:
        name: As `nvidia-smi --query-gpu=name` prints it, without "NVIDIA ".
        memory: Bytes that a process can allocate; less than the name says.
        bf16_flops: Dense BF16 peak of the data sheet.
        matmul_flops: Highest BF16 rate seen in a large matrix product; None where nobody measured.
        memory_bandwidth: HBM peak of the data sheet.
        nvlink_bandwidth: Total of all links, as vendors count it; one direction has half.
        compute_capability: 8.0 is Ampere: no FP8, no FlashAttention 3.
        sources: Where the numbers come from.
    """

    name: str
    memory: int
    bf16_flops: float
    matmul_flops: float | None
    memory_bandwidth: float
    nvlink_bandwidth: float
    compute_capability: tuple[int, int]
    sources: tuple[str, ...]

    @property
    def fp8(self) -> bool:
        """Whether the tensor cores compute in FP8 (from 8.9 on)."""
        return self.compute_capability >= (8, 9)


A100_SOURCES = (
    "NVIDIA A100 data sheet: 312 TFLOP/s, 2039 GB/s, NVLink 600 GB/s",
    "ml-engineering compute/accelerator/README.md: matmul ceiling of the A100 SXM 271.2 TFLOP/s",
)

GPUS: dict[str, Gpu] = {
    gpu.name: gpu
    for gpu in (
        Gpu(
            "A800-SXM4-80GB",
            int(79.1 * GIB),
            312e12,
            271.2e12,
            2.039e12,
            400e9,
            (8, 0),
            (*A100_SOURCES, "tweakers.net/nieuws/203182: A800 = A100 with NVLink 400 GB/s"),
        ),
        Gpu("A100-SXM4-80GB", int(79.1 * GIB), 312e12, 271.2e12, 2.039e12, 600e9, (8, 0), A100_SOURCES),
        Gpu(
            "H100-SXM5-80GB",
            int(79.1 * GIB),
            989.4e12,
            None,
            3.35e12,
            900e9,
            (9, 0),
            ("NVIDIA H100 data sheet: 989.4 TFLOP/s dense, 3.35 TB/s, NVLink 900 GB/s",),
        ),
        Gpu(
            "H200",
            int(139 * GIB),
            989.4e12,
            796e12,
            4.8e12,
            900e9,
            (9, 0),
            (
                "NVIDIA H200 data sheet: 989.4 TFLOP/s dense, 4.8 TB/s, NVLink 900 GB/s",
                "measured: 8192 x 8192 bf16 matmul 796 TFLOP/s, torch 2.11, driver 580",
            ),
        ),
    )
}


def gpu_named(name: str) -> Gpu:
    """The GPU of this name, with or without the "NVIDIA " that nvidia-smi puts before it.

    Raises:
        ValueError: For an unknown name; the message lists the known ones.
    """
    gpu = GPUS.get(name.removeprefix("NVIDIA "))
    if gpu is None:
        raise ValueError(f"no data for GPU {name!r}; known: {', '.join(GPUS)}")
    return gpu
