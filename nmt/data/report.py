"""A report on a corpus as a table in the terminal, as JSON, and as one page of HTML with plots."""

import html
import json
import math
from collections.abc import Iterator
from typing import Any

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from nmt.data.check import BINS_AN_OCTAVE, PARTS, Report
from nmt.data.rules import RULES

FORMAT_VERSION = 1
_EXCERPT = 60  # characters
_SHOWN_LINES, _SHOWN_PAIRS, _SHOWN_STRETCHES = 5, 2, 20
_WORDS = {"wrong": "most likely wrong", "look": "worth a look"}


def escaped(text: str, length: int = _EXCERPT) -> str:
    """A short piece of text that cannot drive a terminal: what is not printable is escaped."""
    shown = text if len(text) <= length else text[: length - 1] + "…"
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in shown)


def as_json(report: Report) -> str:
    """The whole report. Lines are the first 100 of each rule, counted from 1 within their source."""
    found = {
        name: {
            "count": finding.count,
            "share": finding.count / max(1, report.pairs),
            "severity": RULES[name].severity,
            "meaning": RULES[name].meaning,
            "way_out": RULES[name].way_out,
            "lines": [{"source": source, "line": line} for source, line in map(report.place, finding.lines)],
            "excerpts": [
                {"source": report.place(line)[0], "line": report.place(line)[1], "src": src[:500], "tgt": tgt[:500]}
                for line, src, tgt in finding.excerpts
            ],
        }
        for name, finding in report.findings.items()
    }
    stretches = [
        {
            "source": report.place(stretch.start)[0],
            "start": report.place(stretch.start)[1],
            "end": report.place(stretch.end)[1],
            "target_late_by": stretch.shift,
        }
        for stretch in report.stretches
    ]
    whole: dict[str, Any] = {
        "format_version": FORMAT_VERSION,
        "languages": list(report.languages),
        "sources": [{"name": name, "pairs": pairs} for name, pairs in report.sources],
        "pairs": report.pairs,
        "refusals": report.refusals,
        "doubts": report.doubts,
        "findings": found,
        "misaligned_stretches": stretches,
        "tokenizer": report.tokens,
        "quality": [None if math.isnan(value) else round(value, 3) for value in report.quality],
        "lengths": {
            "bins_an_octave": BINS_AN_OCTAVE,
            "src": report.length_counts[0].tolist(),
            "tgt": report.length_counts[1].tolist(),
        },
    }
    return json.dumps(whole, indent=1, ensure_ascii=False)


def show(report: Report, console: Console) -> None:
    """Print the report as a table, and for each finding the way out."""
    for name, pairs in report.sources:
        console.print(Text(f"{escaped(name, 500)}: {pairs:,} pairs"), soft_wrap=True)
    table = Table("rule", "", "pairs", "share", "what it means, the way out, where", box=None, pad_edge=False)
    for column in (2, 3):
        table.columns[column].justify = "right"
    for name, finding in report.findings.items():
        rule = RULES[name]
        words = Text(f"{rule.meaning} -> {rule.way_out}\nlines {_lines(report, finding.lines)}")
        share = f"{100 * finding.count / report.pairs:.2f} %"
        table.add_row(
            name, rule.severity, f"{finding.count:,}", share, Group(words, *_pairs(finding.excerpts[:_SHOWN_PAIRS]))
        )
    if report.findings:
        console.print(table)
    for text in _stretches(report):
        console.print(Text(text))
    for side, values in report.tokens.items():
        console.print(Text(f"tokenizer, {side}: " + ", ".join(f"{value:.2f} {name}" for name, value in values.items())))
    for refusal in report.refusals:
        console.print(Text(f"training refuses this corpus: {refusal}"), soft_wrap=True)
    for doubt in report.doubts:
        console.print(Text(f"wrong as a whole: {doubt}"), soft_wrap=True)
    if not report.findings and not report.refusals and not report.doubts:
        console.print("nothing was found")


def _lines(report: Report, lines: list[int]) -> str:
    """Line numbers, those that follow one another as a range."""
    ranges: list[list[int]] = []
    for line in lines:
        if ranges and line == ranges[-1][1] + 1:
            ranges[-1][1] = line
        else:
            ranges.append([line, line])
    shown = []
    for start, end in ranges[:_SHOWN_LINES]:
        name, line = report.place(start)
        where = f"{escaped(name)}:" if len(report.sources) > 1 else ""
        shown.append(f"{where}{line:,}" + (f"-{line + end - start:,}" if end > start else ""))
    return ", ".join(shown) + (", …" if len(ranges) > _SHOWN_LINES else "")


def _pairs(excerpts: list[tuple[int, str, str]]) -> Iterator[Text]:
    for _, src, tgt in excerpts:
        yield Text(f"  {escaped(src)} | {escaped(tgt)}", style="dim")


def _stretches(report: Report) -> Iterator[str]:
    several = len(report.sources) > 1
    for stretch in report.stretches[:_SHOWN_STRETCHES]:
        name, start = report.place(stretch.start)
        where = f"{escaped(name)}, " if several else ""
        yield f"misaligned: {where}{stretch.moved(start - stretch.start)}"
    if len(report.stretches) > _SHOWN_STRETCHES:
        yield f"misaligned: {len(report.stretches) - _SHOWN_STRETCHES:,} more stretches; --json FILE lists them all"


_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>nmt data check</title>
<style>
:root {{ color-scheme: light dark; --ink: #1f2933; --paper: #fff; --line: #d5dbe1;
  --a: #2f6fb0; --b: #c2662d; --bad: #b3261e }}
@media (prefers-color-scheme: dark) {{
  :root {{ --ink: #e4e7eb; --paper: #16191d; --line: #3a424b; --a: #6aa6e0; --b: #e39a66; --bad: #ff8a80 }} }}
body {{ font: 15px/1.45 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 1100px; margin: 2em auto; padding: 0 1em }}
table {{ border-collapse: collapse; width: 100% }}
td, th {{ text-align: left; vertical-align: top; padding: .35em .7em .35em 0; border-bottom: 1px solid var(--line) }}
.n {{ text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap }}
.refused, .wrong {{ color: var(--bad) }}
.x {{ font-size: 90%; opacity: .8; overflow-wrap: anywhere }}
svg {{ width: 100%; height: auto; overflow: visible }}
text {{ fill: var(--ink); font-size: 11px }}
figure {{ margin: 1.5em 0 }}
.two {{ display: grid; grid-template-columns: 1fr 1fr; gap: 2em }}
</style>
<h1>{title}</h1>
{body}
</html>
"""


def as_html(report: Report) -> str:
    """One page that needs nothing else. Text of the corpus is escaped, and a policy forbids scripts on top."""
    src, tgt = map(html.escape, report.languages)
    parts = [f"<p>{html.escape(escaped(name, 500))}: {pairs:,} pairs</p>" for name, pairs in report.sources]
    parts += [f'<p class="refused">Wrong as a whole: {html.escape(text)}</p>' for text in report.doubts]
    parts += [f'<p class="refused">Training refuses this corpus: {html.escape(text)}</p>' for text in report.refusals]
    parts.append(_html_table(report))
    stretches = "".join(f"<li>{html.escape(text)}</li>" for text in _stretches(report))
    parts.append(f"<ul>{stretches}</ul>" if stretches else "")
    for side, values in report.tokens.items():
        shown = ", ".join(f"{value:.2f} {html.escape(name)}" for name, value in values.items())
        parts.append(f"<p>Tokenizer, {html.escape(side)}: {shown}</p>")
    if report.pairs:
        parts.append(
            _figure("Evidence that pairs are translations, along the corpus: a dip is a bad stretch", _quality(report))
        )
        parts.append('<div class="two">')
        parts.append(_figure(f"Characters a line: {src} (first of two bars) and {tgt}", _lengths(report)))
        parts.append(_figure(f"Characters of {src} (across) and {tgt} (up): off the diagonal is odd", _ratios(report)))
        parts.append("</div>")
    return _PAGE.format(title=f"Corpus {src}–{tgt}: {report.pairs:,} pairs", body="\n".join(parts))


def _html_table(report: Report) -> str:
    rows = []
    for name, finding in report.findings.items():
        rule = RULES[name]
        pairs = "".join(
            f'<div class="x">{html.escape(escaped(src, 160))} | {html.escape(escaped(tgt, 160))}</div>'
            for _, src, tgt in finding.excerpts
        )
        rows.append(
            f'<tr><td class="{rule.severity}">{name}</td><td class="n">{finding.count:,}</td>'
            f'<td class="n">{100 * finding.count / report.pairs:.2f} %</td>'
            f"<td>{html.escape(_lines(report, finding.lines))}</td>"
            f"<td>{rule.meaning} ({_WORDS[rule.severity]}).<br>{html.escape(rule.way_out)}{pairs}</td></tr>"
        )
    head = "<tr><th>rule</th><th class=n>pairs</th><th class=n>share</th><th>lines</th><th>meaning, way out</th></tr>"
    return f"<table>{head}{''.join(rows)}</table>" if rows else "<p>Nothing was found.</p>"


def _figure(caption: str, drawing: str) -> str:
    return f"<figure><figcaption>{caption}</figcaption>{drawing}</figure>"


def _quality(report: Report) -> str:
    """A bar for each part of the corpus; those below zero in another colour."""
    width, height, zero = 1000, 140, 100
    values = [0.0 if math.isnan(value) else value for value in report.quality]
    scale = zero / max(1.0, *values)
    bars = []
    for part, value in enumerate(values):
        size = min(abs(value) * scale, height - zero if value < 0 else zero)
        top, colour = (zero, "bad") if value < 0 else (zero - size, "a")
        first, last = (place * report.pairs // PARTS + 1 for place in (part, part + 1))
        bars.append(
            f'<rect x="{part * width / PARTS:.1f}" y="{top:.1f}" width="{width / PARTS - 0.5:.1f}" height="{size:.1f}" '
            f'fill="var(--{colour})"><title>pairs {first:,}-{last - 1:,}: {value:.1f}</title></rect>'
        )
    axis = f'<line x1="0" x2="{width}" y1="{zero}" y2="{zero}" stroke="var(--line)"/>'
    return f'<svg viewBox="0 0 {width} {height}" role="img">{"".join(bars)}{axis}</svg>'


def _lengths(report: Report) -> str:
    counts = report.length_counts
    most, bins = max(1, int(counts.max())), counts.shape[1]
    bars = [
        f'<rect x="{i * 14 + side * 6}" y="{200 - 190 * count / most:.1f}" width="6" height="{190 * count / most:.1f}" '
        f'fill="var(--{"ab"[side]})"><title>{_from(i):,} characters: {count:,}</title></rect>'
        for side in (0, 1)
        for i, count in enumerate(counts[side].tolist())
    ]
    labels = [f'<text x="{i * 14}" y="215">{_from(i):,}</text>' for i in range(0, bins, BINS_AN_OCTAVE * 2)]
    return f'<svg viewBox="0 0 {bins * 14} 225" role="img">{"".join(bars + labels)}</svg>'


def _ratios(report: Report) -> str:
    counts = report.pair_counts
    bins, size, most = len(counts), 10, math.log1p(int(counts.max()))
    cells = [
        f'<rect x="{i * size}" y="{(bins - 1 - j) * size}" width="{size}" height="{size}" fill="var(--a)" '
        f'opacity="{0.08 + 0.92 * math.log1p(counts[i, j]) / most:.2f}">'
        f"<title>{_from(i):,} and {_from(j):,} characters: {counts[i, j]:,}</title></rect>"
        for i in range(bins)
        for j in range(bins)
        if counts[i, j]
    ]
    frame = f'<rect width="{bins * size}" height="{bins * size}" fill="none" stroke="var(--line)"/>'
    return f'<svg viewBox="0 0 {bins * size} {bins * size}" role="img">{frame}{"".join(cells)}</svg>'


def _from(number: int) -> int:
    """The least length of a bin."""
    return math.ceil(2 ** (number / BINS_AN_OCTAVE))
