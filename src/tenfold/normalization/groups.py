"""How many groups for a number of channels (Wu & He 2018, arXiv 1803.08494, section 4.1 and table 3)."""

from __future__ import annotations

GROUPS = 32  # the paper's default
CHANNELS_PER_GROUP = 16  # the paper's other rule, as good as the first


def recommend_groups(num_channels: int, groups: int | None = None, *, channels_per_group: int | None = None) -> int:
    """The number of groups for a layer: 32 as in the paper, or as many as give each group 16 channels.

    Args:
        num_channels: Channels of the layer, at least 1.
        groups: Groups wanted; 32 if neither argument is given.
        channels_per_group: Channels wanted in each group; the paper's figure is 16.

    Returns:
        A number of groups that divides ``num_channels``.

    Raises:
        ValueError: Both arguments are given, one is below 1, or they do not divide; the nearest that do are named.

    >>> recommend_groups(256), recommend_groups(256, channels_per_group=16)
    (32, 16)
    >>> recommend_groups(48)
    Traceback (most recent call last):
        ...
    ValueError: groups=32 does not divide num_channels=48; the nearest that do are groups=24 and groups=48
    """
    if groups is not None and channels_per_group is not None:
        raise ValueError(
            f"groups={groups} and channels_per_group={channels_per_group} are two ways to say the same; give one of them"
        )
    name, wanted = ("groups", GROUPS) if channels_per_group is None else ("channels_per_group", channels_per_group)
    if groups is not None:
        wanted = groups
    for argument, value in (("num_channels", num_channels), (name, wanted)):
        if value < 1:
            raise ValueError(f"{argument}={value} is not a number of channels or groups; it must be at least 1")
    if num_channels % wanted:
        nearest = " and ".join(f"{name}={value}" for value in nearest_divisors(num_channels, wanted))
        verb = "the nearest that do are" if " and " in nearest else "the nearest that does is"
        raise ValueError(f"{name}={wanted} does not divide num_channels={num_channels}; {verb} {nearest}")
    return wanted if channels_per_group is None else num_channels // wanted


def nearest_divisors(number: int, wanted: int) -> list[int]:
    """The largest divisor of a number below the wanted one and the smallest above it, where they exist.

    >>> nearest_divisors(100, 32), nearest_divisors(16, 32)
    ([25, 50], [16])
    """
    divisors = [d for d in range(1, number + 1) if number % d == 0]
    below = [d for d in divisors if d < wanted][-1:]
    return below + [d for d in divisors if d > wanted][:1]


def groups_for_any(num_channels: int, least: int = 2) -> int:
    """Groups for a layer of any width: 32, or the largest number below that divides and leaves enough channels in a group.

    Groups of one channel are Instance Normalization, the worst column of the paper's table 3; so at least two are kept. Rows
    without positions need more: a group of two values says no more than which of them is larger.

    Args:
        num_channels: Channels of the layer.
        least: Channels that a group must have, if the layer has as many; where it has not, there is one group.

    >>> [groups_for_any(channels) for channels in (64, 32, 16, 48, 7, 1)]
    [32, 16, 8, 24, 1, 1]
    """
    return max(d for d in range(1, GROUPS + 1) if num_channels % d == 0 and (num_channels // d >= least or d == 1))
