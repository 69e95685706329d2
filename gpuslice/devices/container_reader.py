"""Read one container's request for one family of accelerators, and collect everything that is wrong with it."""

from collections.abc import Mapping

from gpuslice.devices.demands import ContainerRequest, Problem
from gpuslice.devices.errors import BadQuantity
from gpuslice.devices.families.family import Family
from gpuslice.devices.pods import Container, Quantity, Resources
from gpuslice.devices.quantity import mebibytes, parse_quantity, whole_number

_NO_RESOURCES = Resources()
WHOLE_CARD = 100


class ContainerReader:
    """Reads one container. Use once: problems gather in it."""

    def __init__(self, container: Container, family: Family, annotations: Mapping[str, str]) -> None:
        self._where = f"container {container.name}"
        self._resources = container.resources or _NO_RESOURCES
        self._family = family
        self._annotations = annotations
        self._problems: list[Problem] = []
        self._slices = 0
        self._written_cards = 0

    def read(self) -> ContainerRequest | tuple[Problem, ...] | None:
        """Return the request, every problem, or None when all that was written is 0."""
        self._check_requests_equal_limits()
        cards, cores_alone = self._cards()
        memory = self._memory(cards)
        percent = self._percent(self._family.resources.memory_percentage)
        cores = cores_alone or self._cores(cards)
        self._priority()
        if cards == 0 and not self._problems:
            if not (memory or percent or cores):
                return None
            self._complain(
                self._family.resources.count, "0", "ask for at least 1 card, or remove the other device resources"
            )
        if memory and percent:
            self._complain(
                str(self._family.resources.memory_percentage),
                str(percent),
                f"remove it or {self._family.resources.memory}: memory is given once, as a size or as a percentage",
            )
        if not self._problems:
            return self._resolve(cards, memory, percent, cores)
        return tuple(self._problems)

    def _resolve(self, cards: int, memory: int, percent: int, cores: int) -> ContainerRequest | tuple[Problem, ...]:
        """Apply the family's sizes and defaults to numbers that are each valid by themselves."""
        family = self._family
        if memory or self._slices:
            memory, cores = self._on_sale(memory, cores)
        if not memory and not percent:
            memory = family.memory.default_mib
        if family.memory.card_mib is not None and memory >= family.memory.card_mib:
            memory = 0
        percent = percent if memory or percent else WHOLE_CARD
        if family.cores.follows_memory and family.memory.card_mib:
            cores = memory * 100 // family.memory.card_mib if memory else WHOLE_CARD
        whole = percent == WHOLE_CARD
        if (family.cores.several_take_all and cards > 1) or (family.cores.whole_memory_takes_all and whole):
            cores = WHOLE_CARD
        if family.counts.several_are_whole and self._written_cards > family.counts.round_up_to and not whole:
            self._complain(
                family.resources.count, str(cards), "ask for 1 card when you want a part of it: several are whole"
            )
        if not family.shared:
            memory, percent, cores = 0, WHOLE_CARD, WHOLE_CARD
        if self._problems:
            return tuple(self._problems)
        return ContainerRequest(
            cards=cards,
            memory_mib=memory,
            memory_percent=percent,
            core_percent=cores,
            exclusive=cores == WHOLE_CARD,
            family=family.name,
        )

    def _on_sale(self, memory_mib: int, cores: int) -> tuple[int, int]:
        """Return memory and compute of the size that a request gets; (0, …) means the whole card."""
        rule = self._family.memory
        if not rule.sizes or self._is_exact(cores):
            return memory_mib, cores
        exact = rule.rounding == "exact"
        for size in rule.sizes:
            fits = size.mib == memory_mib if exact else size.mib >= memory_mib
            if fits and size.slices >= self._slices and (size.core_percent is None or size.core_percent >= cores):
                return size.mib, cores if size.core_percent is None else size.core_percent
        largest = rule.capacity_mib or rule.card_mib or 0
        if not exact and memory_mib <= largest:
            return 0, cores
        sizes = sorted({size.mib for size in rule.sizes} | ({rule.card_mib} if rule.card_mib else set()))
        self._complain(str(self._family.resources.memory), f"{memory_mib} MiB", f"write one of {_list_of(sizes)} MiB")
        return memory_mib, cores

    def _is_exact(self, cores: int) -> bool:
        rule = self._family.memory
        key, _, value = rule.exact_when.partition("=")
        return bool((key and self._annotations.get(key) == value) or (rule.exact_with_cores and cores))

    def _quantity(self, name: str | None) -> Quantity | None:
        """Return a quantity by its name or another spelling of it; None when absent or when the family has no such."""
        if name is None:
            return None
        quantity = self._resources.get(name)
        if quantity is None:
            for alias, meant in self._family.resources.aliases.items():
                if meant == name and quantity is None:
                    quantity = self._resources.get(alias)
        return quantity

    def _complain(self, field: str, value: str, remedy: str) -> None:
        self._problems.append(Problem(self._where, field, value, remedy))

    def _check_requests_equal_limits(self) -> None:
        """Extended resources cannot be overcommitted: the API server wants both equal, and says so less clearly."""
        limits, requests = self._resources.limits, self._resources.requests
        for name in self._family.resources.names():
            if name not in limits or name not in requests:
                continue
            try:
                equal = parse_quantity(limits[name]) == parse_quantity(requests[name])
            except BadQuantity as error:
                if str(requests[name]) == error.text:
                    self._complain(f"requests.{name}", error.text, f"{error.problem}; {error.remedy}")
                continue
            if not equal:
                self._complain(
                    f"requests.{name}", str(requests[name]), f"make it equal to the limit {limits[name]}, or remove it"
                )

    def _number(self, name: str | None, *, maximum: int) -> int | None:
        quantity = self._quantity(name)
        if quantity is None:
            return None
        try:
            return whole_number(quantity, maximum=maximum)
        except BadQuantity as error:
            self._complain(str(name), str(quantity), f"{error.problem}; {error.remedy}")
            return None

    def _percent(self, name: str | None) -> int:
        return self._number(name, maximum=100) or 0

    def _priority(self) -> None:
        name = self._family.resources.priority
        self._number(name, maximum=1)

    def _cards(self) -> tuple[int, int]:
        """Return the number of cards, and compute per card where it comes with the number."""
        family, rule = self._family, self._family.counts
        if family.resources.cores_alone is not None and self._quantity(family.resources.cores_alone) is not None:
            return self._cards_from_cores(family.resources.cores_alone)
        if self._quantity(family.resources.count) is None:
            return self._implied_count(), 0
        count = self._number(family.resources.count, maximum=rule.maximum)
        if count is None:
            return 1, 0
        if rule.unit == "slices":
            self._slices = count
            return min(count, 1), 0
        self._written_cards = count
        if count == 1 and rule.round_up_to > 1:
            count = rule.round_up_to
        if count % rule.round_up_to:
            self._complain(family.resources.count, str(count), f"write 1 or a multiple of {rule.round_up_to}")
        if count and rule.allowed and count not in rule.allowed:
            self._complain(family.resources.count, str(count), f"write one of {_list_of(rule.allowed)}")
        return count, 0

    def _implied_count(self) -> int:
        """Memory or compute without a count means one card, by default."""
        family = self._family
        sized = (family.resources.memory, family.resources.memory_percentage, family.resources.cores)
        if not any(self._quantity(name) is not None for name in sized):
            self._complain(str(family.resources.priority), "set", f"ask for cards too: {family.resources.count}: 1")
        elif family.counts.default == 0:
            self._complain(family.resources.count, "", f"write {family.resources.count}: 1 beside memory and compute")
        elif all((self._loose_zero(name)) for name in sized):
            return 0
        cards = max(1, family.counts.default)
        return -(-cards // family.counts.round_up_to) * family.counts.round_up_to

    def _loose_zero(self, name: str | None) -> bool:
        quantity = self._quantity(name)
        try:
            return quantity is None or parse_quantity(quantity) == 0
        except BadQuantity:
            return False

    def _cards_from_cores(self, name: str) -> tuple[int, int]:
        units = self._family.cores.alone_units_per_card
        wanted = self._number(name, maximum=units * self._family.counts.maximum)
        if wanted is None:
            return 1, 0
        if self._quantity(self._family.resources.count) is not None:
            self._complain(name, str(wanted), f"remove it or {self._family.resources.count}: each counts by itself")
        if wanted <= units:
            return min(wanted, 1), wanted * 100 // units
        if wanted % units:
            self._complain(name, str(wanted), f"write less than {units} or a multiple of {units}")
        return wanted // units, WHOLE_CARD

    def _memory(self, cards: int) -> int:
        """Return MiB per card; 0 when not given."""
        rule, name = self._family.memory, self._family.resources.memory
        quantity = self._quantity(name)
        if quantity is None:
            return 0
        share = cards if rule.scope == "container" and cards > 1 else 1
        try:
            total = mebibytes(quantity, factor=rule.unit_mib, bare_is_bytes=rule.bare_is_bytes)
        except BadQuantity as error:
            self._complain(str(name), str(quantity), f"{error.problem}; {error.remedy}")
            return 0
        if total % share:
            self._complain(str(name), str(quantity), f"write a total that {share} cards can share equally")
        return total // share

    def _cores(self, cards: int) -> int:
        """Return compute in percent of each card; units that are no whole percent round down."""
        rule, name = self._family.cores, self._family.resources.cores
        if self._quantity(name) is None:
            return rule.default_percent
        share = cards if rule.scope == "container" and cards > 1 else 1
        units = self._number(name, maximum=rule.units_per_card * share)
        if units is None:
            return rule.default_percent
        if units % share:
            self._complain(str(name), str(units), f"write a total that {share} cards can share equally")
        return units // share * 100 // rule.units_per_card


def written_count(request: ContainerRequest, family: Family) -> int:
    """Return the number that stands under the family's count resource: cards, or slices of one card."""
    if family.counts.unit == "cards":
        return request.cards
    sizes = family.memory.sizes
    return next((size.slices for size in sizes if size.mib == request.memory_mib), sizes[-1].slices)


def _list_of(numbers: tuple[int, ...] | list[int]) -> str:
    return ", ".join(str(number) for number in numbers)
