"""HTML of a tab for the browser's first paint, before scripts are loaded.

NiceGUI sends a tab as data that its scripts turn into elements: until they are loaded and run, the window is
empty. The HTML made here shows texts, tables and links at once. The script in `elements.HEAD` removes it when
the elements are mounted.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from nicegui import ui
from nicegui.element import Element

from fabrictime.web.widgets import Cell, Chips, LiveMarkup, LiveTable, LiveText, Section

ID: Final = "ft-first"
"""Id of the copy in the document."""
_ATTRIBUTE: Final = re.compile(r"(data-|aria-).+|role|type|href|title|tabindex")
"""Names of properties that are attributes of the HTML, whatever the component is."""
_TEMPLATE: Final = re.compile(r"`(<div.*?</div>)`,?\n", re.DOTALL)
"""The HTML of a component in its JavaScript."""
_CONDITIONAL: Final = re.compile(r'<(\w+)[^>]* v-show="[^>]*></\1>')
_DIRECTIVE: Final = re.compile(r' v-[\w-]+="[^"]*"')
_BOUND: Final = re.compile(r' :([\w-]+)="([^"]*)"|\{\{ (\w+) \}\}')
"""A property of a component in its template: as an attribute, or as a text."""
_TOGGLE: Final = "q-btn-group row no-wrap q-btn-toggle q-btn-group--unelevated"
_BUTTON: Final = (
    "q-btn q-btn-item non-selectable no-outline q-btn--unelevated q-btn--rectangle q-btn--dense "
    "q-btn--no-uppercase"
)


def first_html(content: Element) -> str:
    """Return a page's content as static HTML. `content` is the element that holds all others."""
    parts = "".join(_html_of(child) for child in content.default_slot.children)
    return f'<div id="{ID}" class="nicegui-layout"><div class="nicegui-content">{parts}</div></div>'


def _html_of(element: Element) -> str:
    """Return an element's HTML; empty for a component that this module cannot convert."""
    for kind, write in _KINDS.items():
        if isinstance(element, kind):
            return write(element)
    if element.component is not None:
        return _component(element, element.component.path)
    tag = element.tag
    return f"<{tag}{_attributes(element)}>{_inside(element)}</{tag}>"


def _inside(element: Element) -> str:
    own = getattr(element, "text", None)
    return html.escape(own or "") + "".join(_html_of(child) for child in element.default_slot.children)


def _attributes(element: Element, classes: str = "", hidden: bool = False) -> str:
    names = " ".join([*filter(None, [classes]), *element.classes])
    pairs = [("class", names)] if names else []
    pairs += [
        (name, str(value))
        for name, value in element.props.items()
        if _ATTRIBUTE.fullmatch(name) and isinstance(value, str | int) and value != ""
    ]
    written = "".join(f' {name}="{html.escape(value)}"' for name, value in pairs)
    return f"{written} hidden" if hidden else written


def _text(element: LiveText) -> str:
    content = element.text if isinstance(element, LiveMarkup) else html.escape(element.text)
    return f"<div{_attributes(element)}>{content}</div>"


def _link(element: ui.link) -> str:
    return f"<a{_attributes(element)}>{_inside(element)}</a>"


def _section(element: Section) -> str:
    return f"<div{_attributes(element)}>{_inside(element)}</div>"


def _chips(element: Chips) -> str:
    chips = "".join(
        f'<a class="ft-chip ft-go" href="{html.escape(address)}">{html.escape(content)}</a>'
        if address
        else f'<button type="button" class="ft-chip">{html.escape(content)}</button>'
        for _, content, address in element.state()["chips"]
    )
    return f"<div{_attributes(element, 'ft-chips')}>{chips}</div>"


def _table(element: LiveTable) -> str:
    columns = element.props["columns"]
    head = "".join(f'<th style="text-align:{align}">{html.escape(label)}</th>' for label, align in columns)
    rows = element.state()["rows"]
    body = "".join(
        "<tr>"
        + "".join(
            f'<td style="text-align:{align}">{_cell(cell)}</td>'
            for (_, align), cell in zip(columns, cells, strict=True)
        )
        + "</tr>"
        for _, cells in rows
    )
    head = f"<thead><tr>{head}</tr></thead>" if element.props["head"] else ""
    table = f"<table>{head}<tbody>{body}</tbody></table>"
    return f"<div{_attributes(element, 'ft-rows', hidden=not rows)}>{table}</div>"


def _cell(cell: Cell) -> str:
    """Return a cell's HTML. Small charts are left out."""
    if isinstance(cell, str):
        return html.escape(cell)
    return "".join(_part(classes, content, *rest) for classes, content, _, *rest in cell)


def _part(classes: str, content: str, values: list[float] | str = "") -> str:
    if isinstance(values, str) and values:
        return f'<a class="{classes}" href="{html.escape(values)}">{html.escape(content)}</a>'
    return f'<div class="{classes}">{"" if len(values) > 1 else html.escape(content)}</div>'


def _toggle(element: ui.toggle) -> str:
    buttons = "".join(
        f'<button type="button" class="{_BUTTON}" aria-pressed="{str(value == element.value).lower()}">'
        f'<span class="q-btn__content text-center col items-center q-anchor--skip justify-center row">'
        f'<span class="block">{html.escape(str(label))}</span></span></button>'
        for value, label in _options(element)
    )
    return f"<div{_attributes(element, _TOGGLE)}>{buttons}</div>"


def _options(element: ui.toggle) -> Iterator[tuple[Any, Any]]:
    options = element.options
    yield from options.items() if isinstance(options, dict) else ((one, one) for one in options)


def _component(element: Element, path: Path) -> str:
    """Return the HTML template in a component's JavaScript, filled with the element's properties."""
    template = _template(path)
    if not template:
        return ""

    def bound(match: re.Match[str]) -> str:
        attribute, expression, name = match.groups()
        value = html.escape(str(element.props.get(name or expression, "")))
        return f' {attribute}="{value}"' if attribute and value else value

    root, _, rest = _BOUND.sub(bound, template).partition(">")
    classes = re.search(r'class="([^"]*)"', root)
    root = re.sub(r' class="[^"]*"', "", root)
    return f"{root}{_attributes(element, classes[1] if classes else '')}>{rest}"


@cache
def _template(path: Path) -> str:
    match = _TEMPLATE.search(path.read_text(encoding="utf-8"))
    return _DIRECTIVE.sub("", _CONDITIONAL.sub("", match[1])) if match else ""


_KINDS: Final[Mapping[type[Element], Callable[[Any], str]]] = {
    LiveText: _text,
    LiveTable: _table,
    Section: _section,
    Chips: _chips,
    ui.link: _link,
    ui.toggle: _toggle,
    ui.table: lambda _: "",
    ui.input: lambda _: "",
    ui.code: lambda _: "",
    ui.timer: lambda _: "",
}
