"""What is summed: sizes in bytes, and the numbers in ResNet-50's trainable tensors."""

from __future__ import annotations

SIZES = {"4 KB": 4 << 10, "1 MB": 1 << 20, "16 MB": 16 << 20, "64 MB": 64 << 20}
SHORT = {"4 KB": 4 << 10}
RESNET = "161 tensors, 102 MB"
WARM_UP = 5


def times(size: int, short: bool) -> int:
    """Returns how often tensors of so many bytes are summed."""
    return 3 if short else max(10, min(200, (256 << 20) // max(size, 1)))


def resnet50() -> list[int]:
    """Returns how many numbers each of the 161 trainable tensors of ResNet-50 has.

    >>> len(resnet50()), sum(resnet50())
    (161, 25557032)
    """
    sizes = [7 * 7 * 3 * 64, 64, 64]  # a convolution, and scale and shift of its normalization
    channels = 64
    for blocks, inner in ((3, 64), (4, 128), (6, 256), (3, 512)):
        for block in range(blocks):
            layers = [channels * inner, 9 * inner * inner, inner * 4 * inner]
            widths = [inner, inner, 4 * inner]
            if block == 0:
                layers.append(channels * 4 * inner)
                widths.append(4 * inner)
            for layer, width in zip(layers, widths, strict=True):
                sizes += [layer, width, width]
            channels = 4 * inner
    return [*sizes, 2048 * 1000, 1000]
