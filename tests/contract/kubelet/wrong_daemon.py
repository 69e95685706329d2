"""The node daemon with a bug: whoever asks, every answer says the first card."""

import dataclasses
import sys

from deviceplugin import __main__, sharing
from deviceplugin.backend import Edits
from deviceplugin.book import Grant
from deviceplugin.nodeconfig import NodeSettings
from deviceplugin.offers import Offers
from gpuslice.devices.allocation import SliceShare
from gpuslice.devices.inventory import slice_id

_describe = sharing.describe


def wrong(grant: Grant, offers: Offers, settings: NodeSettings, paths: sharing.HostPaths) -> Edits:
    """Describe the first card to everybody."""
    first = min(offers.by_uuid)
    shares = tuple(SliceShare(slice_id(first, 0), share.memory_mib) for share in grant.shares)
    return _describe(dataclasses.replace(grant, shares=shares), offers, settings, paths)


if __name__ == "__main__":
    sharing.describe = wrong
    sys.exit(__main__.main())
