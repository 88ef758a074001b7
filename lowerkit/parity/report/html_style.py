"""The style sheet of the HTML report: one column, wide tables scroll by themselves, light and dark."""

STYLE = """
:root { --text: #1c2330; --soft: #5c6675; --line: #dfe3ea; --back: #f6f7f9; --card: #ffffff; --good: #1a7f4b;
  --bad: #c0272d; --bar: #3a6ea5; --bar2: #a9c3dd; --code: #f1f3f6; }
@media (prefers-color-scheme: dark) { :root { --text: #e6e9ee; --soft: #9aa4b2; --line: #333b47; --back: #161a20;
  --card: #1e242c; --good: #4cc38a; --bad: #ff6b6b; --bar: #6aa5e0; --bar2: #3c5876; --code: #12161b; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--text); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1200px; margin: 0 auto; padding: 28px 24px 60px; }
h1 { font-size: 24px; margin: 0; } h2 { font-size: 18px; margin: 0 0 10px; } h3 { font-size: 15px; margin: 18px 0 6px; }
.source { color: var(--soft); margin: 2px 0 20px; font-family: ui-monospace, monospace; overflow-wrap: anywhere; }
section { margin: 0 0 26px; }
.gates { list-style: none; margin: 0; padding: 0; display: grid; gap: 12px;
  grid-template-columns: repeat(auto-fit, minmax(250px, 1fr)); }
.gates li, .card { background: var(--card); border: 1px solid var(--line); border-left: 5px solid var(--soft);
  border-radius: 6px; padding: 12px 16px; }
.gates b, .gates span { display: block; } .gates span { color: var(--soft); font-size: 13px; }
.gates .pass, .card.pass { border-left-color: var(--good); } .gates .fail, .card.fail { border-left-color: var(--bad); }
.gates .pass b { color: var(--good); } .gates .fail b { color: var(--bad); }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 3px 18px; margin: 0; }
dt { color: var(--soft); } dd { margin: 0; font-family: ui-monospace, monospace; overflow-wrap: anywhere; }
pre { background: var(--code); border: 1px solid var(--line); border-radius: 4px; padding: 10px; overflow: auto;
  max-height: 560px; font: 12.5px/1.45 ui-monospace, monospace; }
summary { cursor: pointer; } .file { margin: 4px 0; color: var(--soft); }
svg { width: 100%; height: auto; background: var(--card); border: 1px solid var(--line);
  border-radius: 6px; padding: 6px; }
svg text { font: 13px system-ui, sans-serif; fill: var(--text); } svg .db { font-size: 11px; fill: var(--soft); }
svg .stage.lost { fill: var(--bad); font-weight: 700; }
.exact { fill: var(--bar); } .own { fill: var(--bar2); } rect.lost { fill: var(--bad); } rect.own.lost { opacity: .55; }
.legend { color: var(--soft); font-size: 13px; margin: 0 0 8px; }
.key { display: inline-block; width: 12px; height: 12px; margin: 0 4px -1px 10px; border-radius: 2px; }
.key.exact { background: var(--bar); margin-left: 0; } .key.own { background: var(--bar2); }
.wide { overflow-x: auto; background: var(--card); border: 1px solid var(--line); border-radius: 6px; }
table { border-collapse: collapse; width: 100%; font-size: 13px; }
th, td { text-align: left; padding: 5px 10px; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { color: var(--soft); font-weight: 600; } tbody tr:last-child td { border-bottom: 0; }
td:nth-child(1) { color: var(--good); font-weight: 700; } tr.fail td:nth-child(1) { color: var(--bad); }
tr.fail td { background: color-mix(in srgb, var(--bad) 9%, transparent); }
td:nth-child(2), td:nth-child(9) { font-family: ui-monospace, monospace; }
td:nth-child(8) { white-space: normal; min-width: 180px; }
td:nth-child(5), td:nth-child(6), td:nth-child(7) { font-variant-numeric: tabular-nums; }
.bar { display: block; height: 3px; background: var(--bar); border-radius: 2px; } .bar.weak { background: var(--bad); }
"""
