"""Compares the names of links with the true cables that they denote."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from schemas.ids import cable_id, end_parts


class CableNames:
    """The true cables behind the names that agents give; `cables` are all cables of the network.

    `places` maps the names of a switch, and of the NICs at it, to the cables of the switch.
    """

    def __init__(self, cables: Iterable[str], places: Mapping[str, set[str]]) -> None:
        self.cables = frozenset(cables)
        self.stands_for: dict[str, set[str]] = defaultdict(set)
        """By name of a directed link: the cables that it stood for on any path."""
        self._places = places

    def note(self, names: Sequence[str], links: Sequence[str], *, layer_2: bool = False) -> None:
        """Record the true links that each name on a complete path denotes.

        `links` are the path's true links. If there are fewer names than links, the leaves hide the links
        between them. In a layer-2 network the names are those of the two NICs' cables.
        """
        hidden = len(links) - len(names)
        for at, name in enumerate(names):
            if not hidden:
                true = [links[at]]
            elif layer_2:
                true = [links[0] if at == 0 else links[-1]]
            else:
                true = [links[0]] if at == 0 else [links[-1]] if at == len(names) - 1 else list(links[1:-1])
            self.stands_for[name].update(cable_id(link) for link in true)

    def cables_of(self, names: Iterable[str]) -> set[str]:
        """Return the true cables that cable names denote, and for NIC names the NICs' own cables."""
        cables: set[str] = set()
        for name in names:
            near, mark, far = name.partition("<>")
            if not mark:
                end = name.replace("/", ":")
                cables.update(cable for cable in self.cables if end in cable.split("<>"))
            else:
                cables.update(*(self.stands_for.get(link, ()) for link in (f"{near}>{far}", f"{far}>{near}")))
                cables.update({name} & self.cables)
        return cables

    def cables_beside(self, names: Iterable[str]) -> set[str]:
        """Return the true cables of names; a switch denotes its cables, a NIC the cables of its leaf."""
        places = set(names)
        cables = self.cables_of(name for name in places if "<>" in name)
        return cables.union(*(self._places.get(name, ()) for name in places))

    def merged(self) -> dict[str, set[str]]:
        """Return the invented links: names that denote cables between different switches, with the cables."""
        return {
            name: cables
            for name, cables in self.stands_for.items()
            if len({tuple(sorted(end_parts(e).node for e in cable.split("<>"))) for cable in cables}) > 1
        }
