'use strict';
const data = JSON.parse(document.getElementById('data').textContent);
const report = data.report;

function say(key, args = {}) {
  return (data.words[key] ?? key).replace(/\{(\w+)\}/g, (mark, name) => args[name] ?? mark);
}

// A kernel class, "idle:cause" or phase in words.
function kindWord(kind) {
  if (kind.startsWith('idle:')) return say('report.idle', {cause: say(`cause.${kind.slice(5)}`)});
  return data.words[`class.${kind}`] ?? data.words[`phase.${kind}`] ?? kind;
}

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.filter((c) => c !== null));
  return element;
}

const page = document.getElementById('page');
const redraws = [];  // after a change of theme or width

function section(id, titleKey, ...children) {
  const element = make('section', {id}, make('h2', {}, say(titleKey)), ...children);
  page.append(element);
  return element;
}

function milliseconds(ms) {
  return ms == null ? '?' : microseconds(ms * 1e3);
}

// --- header and steps 1 and 2 ---

function header() {
  page.append(make('h1', {}, 'fathom diagnose'), make('p', {id: 'headline'}, data.headline));
  section('trust', 'report.trust', make('ul', {}, ...data.inputs.map((i) => make('li', {},
    make('span', {class: 'mono'}, i.path), ` · ${i.format} · ${i.summary}`,
    ...(i.notes.length ? [make('ul', {class: 'soft small'}, ...i.notes.map((n) => make('li', {}, n)))]
      : [])))));
}

function machine() {
  const lines = [
    ...data.devices.map((d) => make('li', {}, d)),
    ...Object.entries(data.shares).map(([phase, text]) =>
      make('li', {}, make('b', {}, say(`phase.${phase}`)), ` · ${text}`)),
    ...report.facts.map((f) => make('li', {class: f.alarming ? 'alarm' : null}, f.text)),
  ];
  section('machine', 'report.step1', lines.length ? make('ul', {}, ...lines)
    : make('p', {class: 'soft'}, say('report.nothing_seen')));
}

function typical(phase) {
  const parts = data.typical[phase].slice(0, 5);
  return parts.length ? parts.map(([name, ns]) => `${name}\u00a0${microseconds(ns / 1e3).replace(' ', '\u00a0')}`)
    .join(', ') : say('report.no_gpu_rows');
}

function partsOf(step) {
  return [...Object.entries(step.busy_by_class_ms),
    ...Object.entries(step.idle_by_cause_ms).map(([cause, ms]) => [`idle:${cause}`, ms])];
}

function phases() {
  const rows = Object.entries(report.phases);
  const notes = [...data.step_notes, ...data.server_phases].map((note) => make('li', {}, note));
  const list = notes.length ? make('ul', {}, ...notes) : null;
  if (!rows.length) {
    section('phases', 'report.step2',
      list ?? make('p', {class: 'soft'}, say('report.no_steps')));
    return;
  }
  const head = ['report.phase', 'report.steps'].map((k) => make('th', {}, say(k)));
  const table = make('table', {},
    make('thead', {}, make('tr', {}, ...head, make('th', {}, 'p50 ms'), make('th', {}, 'p99 ms'),
      make('th', {class: 'wide'}, say('report.typical')))),
    make('tbody', {}, ...rows.map(([phase, p]) => make('tr', {},
      make('td', {}, say(`phase.${phase}`)),
      make('td', {'data-head': say('report.steps')}, `${p.counted}`),
      make('td', {'data-head': 'p50 ms'}, p.p50_ms?.toPrecision(3) ?? '?'),
      make('td', {'data-head': 'p99 ms'}, p.p99_ms?.toPrecision(3) ?? '?'),
      make('td', {class: 'wide'}, typical(phase))))));
  section('phases', 'report.step2', ...[make('div', {class: 'scroll'}, table), list].filter(Boolean));
}

// --- findings ---

let timeline = null;

function showSlice(id) {
  if (!timeline?.jump(id)) return;
  document.getElementById('timeline').scrollIntoView({behavior: 'auto', block: 'start'});
}

function findingCard(finding, index) {
  const evidence = finding.evidence.map((e, i) => {
    const place = data.places[index][i];
    const known = place !== null && data.timeline?.slices.some((s) => s[6] === place);
    return make('li', {}, e.text, known
      ? make('button', {class: 'show', 'data-slice': place, onclick: () => showSlice(place)},
             say('html.show')) : null);
  });
  const saves = finding.saving_ms_per_step > 0
    ? `${say('report.saves', {ms: milliseconds(finding.saving_ms_per_step)})} · ` : '';
  const limits = finding.thresholds.map((t) => make('li', {}, say('report.threshold',
    {name: t.name, value: t.value, unit: t.unit, source: t.source, counter: t.counter_example})));
  return make('div', {class: `finding ${finding.severity}`, 'data-severity': finding.severity},
    make('div', {class: 'tag'}, `${say(`severity.${finding.severity}`)} · ${finding.id}` +
      (finding.phase === 'unknown' ? '' : ` · ${say(`phase.${finding.phase}`)}`)),
    make('h3', {}, finding.title),
    make('div', {class: 'soft small'}, saves +
      say('report.confidence', {value: finding.confidence.toFixed(2)})),
    make('ul', {}, ...evidence),
    make('p', {}, make('b', {}, say('report.change')), finding.action.change),
    make('p', {class: 'soft small'}, say('report.risk') + finding.action.risk + ' · ' +
      say('report.undo') + finding.action.undo),
    limits.length ? make('details', {}, make('summary', {}, say('html.limits')),
      make('ul', {class: 'small'}, ...limits)) : null);
}

function findings() {
  const cards = report.findings.map(findingCard);
  const filters = make('div', {class: 'row', role: 'group', 'aria-label': say('html.filter')});
  for (const severity of ['severe', 'warn', 'info']) {
    const mine = cards.filter((c) => c.dataset.severity === severity);
    if (!mine.length) continue;
    const button = make('button', {'aria-pressed': 'true', 'data-filter': severity, onclick: () => {
      const on = button.getAttribute('aria-pressed') !== 'true';
      button.setAttribute('aria-pressed', on);
      for (const card of mine) card.hidden = !on;
    }}, `${say(`severity.${severity}`)} (${mine.length})`);
    filters.append(button);
  }
  const settings = report.recommendations.filter((r) => r.finding === null);
  section('findings', 'report.step3', cards.length ? filters : null, ...(cards.length ? cards
    : [make('p', {class: 'soft'}, say('report.no_findings'))]),
  ...(settings.length ? [make('h3', {}, say('report.recommendations')),
    make('ul', {}, ...settings.map((r) => make('li', {}, r.change,
      make('div', {class: 'soft small'}, say('report.because') + r.why))))] : []));
}

// --- charts ---

function chartBox(low = false) {
  const canvas = make('canvas');
  return {canvas, box: make('div', {class: low ? 'chart low' : 'chart'}, canvas)};
}

// Builds the chart now and again whenever colours change.
function chart(canvas, configure, made = () => {}) {
  let current = null;
  redraws.push((themeChanged) => {
    if (current && !themeChanged) return;  // Chart.js follows the width itself
    current?.destroy();
    Chart.defaults.color = cssColour('--soft');
    Chart.defaults.borderColor = cssColour('--grid');
    Chart.defaults.animation = false;
    Chart.defaults.maintainAspectRatio = false;
    current = new Chart(canvas, configure());
    made(current);
  });
}

function axis(text, more = {}) {
  return {title: {display: true, text}, ...more};
}

function stepBars() {
  const steps = data.shown_steps.map((i) => [i, report.steps[i]]).filter(([, s]) => s.kernels > 0);
  if (steps.length < 2) return;
  const totals = new Map();
  for (const [, s] of steps) {
    for (const [kind, ms] of partsOf(s)) totals.set(kind, (totals.get(kind) ?? 0) + ms);
  }
  const kinds = [...totals].sort((a, b) => a[0].startsWith('idle:') - b[0].startsWith('idle:') ||
    b[1] - a[1]).map(([kind]) => kind);
  const groups = [...new Set(steps.map(([, s]) => s.phase))];
  const select = make('select', {'aria-label': say('report.phase')},
    ...groups.map((g) => make('option', {value: g}, say(`phase.${g}`))));
  select.value = groups.includes('decode') ? 'decode' : groups[0];
  const {canvas, box} = chartBox();
  const thinned = report.steps.length > data.shown_steps.length ? ` ${say('html.steps.thinned',
    {n: data.shown_steps.length, of: report.steps.length})}` : '';
  section('steps', 'html.steps', make('div', {class: 'row'}, select), box, legendOf(kinds),
          make('p', {class: 'soft small'}, say('html.steps.note') + thinned));
  chart(canvas, () => {
    const shown = steps.filter(([, s]) => s.phase === select.value);
    return {
      type: 'bar',
      data: {
        labels: shown.map(([i, s]) => `${i}${s.warmup ? '*' : ''}`),
        datasets: kinds.map((kind) => ({
          label: kindWord(kind), backgroundColor: colourOf(kind), stack: 'all',
          data: shown.map(([, s]) => Object.fromEntries(partsOf(s))[kind] ?? 0),
        })).filter((d) => d.data.some((v) => v > 0)),
      },
      options: {
        scales: {x: axis(say('html.step'), {stacked: true, ticks: {maxRotation: 0, autoSkipPadding: 12}}),
          y: axis('ms', {stacked: true})},
        plugins: {legend: {display: false},
          tooltip: {callbacks: {label: (c) => `${c.dataset.label}: ${milliseconds(c.raw)}`}}},
      },
    };
  });
  const redraw = redraws.at(-1);
  select.addEventListener('change', () => redraw(true));
}

function tailBars() {
  const tails = data.tail.filter((t) => report.steps[t.typical].kernels > 0 && t.slow !== t.typical);
  for (const tail of tails) {
    const [typicalStep, slow] = [report.steps[tail.typical], report.steps[tail.slow]];
    const base = Object.fromEntries(partsOf(typicalStep));
    const difference = new Map(Object.entries(base).map(([kind, ms]) => [kind, -ms]));
    for (const [kind, ms] of partsOf(slow)) difference.set(kind, ms - (base[kind] ?? 0));
    const parts = [...difference].filter(([, ms]) => Math.abs(ms) > 1e-3)
      .sort((a, b) => Math.abs(b[1]) - Math.abs(a[1])).slice(0, 10)
      .filter(([, ms], i, all) => Math.abs(ms) >= 0.005 * Math.abs(all[0][1]));
    if (!parts.length) continue;
    const {canvas, box} = chartBox();
    section(`tail-${tail.phase}`, 'html.tail', make('p', {class: 'soft small'}, say('html.tail.note', {
      phase: say(`phase.${tail.phase}`), slow: milliseconds(slow.wall_ms),
      which: say(tail.of < 100 ? 'report.slowest' : 'report.p99'),
      typical: milliseconds(typicalStep.wall_ms), n: tail.of})), box);
    chart(canvas, () => ({
      type: 'bar',
      data: {labels: parts.map(([kind]) => kindWord(kind)),
        datasets: [{data: parts.map(([, ms]) => ms), backgroundColor: parts.map(([k]) => colourOf(k))}]},
      options: {indexAxis: 'y', scales: {x: axis(say('html.tail.axis'))},
        plugins: {legend: {display: false}}},
    }));
  }
}

function gapCauses() {
  const byPhase = {};
  const working = report.steps.filter((s) => s.kernels > 0);
  const measured = new Set(working.filter((s) => !s.warmup).map((s) => s.phase));
  for (const s of working) {
    if (s.warmup && measured.has(s.phase)) continue;  // a lone step is better than none
    const entry = byPhase[s.phase] ??= {n: 0, sums: {}};
    ++entry.n;
    for (const [cause, ms] of Object.entries(s.idle_by_cause_ms)) {
      entry.sums[cause] = (entry.sums[cause] ?? 0) + ms;
    }
  }
  const shownPhases = Object.keys(byPhase);
  const causes = [...new Set(shownPhases.flatMap((p) => Object.keys(byPhase[p].sums)))];
  if (!causes.length) return;
  const {canvas, box} = chartBox();
  box.classList.add('middle');
  section('gaps', 'html.gaps', box, legendOf(causes.map((cause) => `idle:${cause}`)),
          make('p', {class: 'soft small'}, say('html.gaps.note')));
  chart(canvas, () => ({
    type: 'bar',
    data: {labels: shownPhases.map((p) => say(`phase.${p}`)),
      datasets: causes.map((cause) => ({label: say(`cause.${cause}`), stack: 'all',
        backgroundColor: colourOf(`idle:${cause}`), maxBarThickness: 44,
        data: shownPhases.map((p) => (byPhase[p].sums[cause] ?? 0) / byPhase[p].n)}))},
    options: {indexAxis: 'y', scales: {x: axis(say('html.gaps.axis'), {stacked: true}), y: {stacked: true}},
      plugins: {legend: {display: false}}},
  }));
}

// Labels of a logarithmic axis that covers [low, high]: powers of ten, and 2 and 5 times them where
// there are few.
function logAxis(title, low, high) {
  const few = Math.log10(high / low) < 2.5;
  return axis(title, {type: 'logarithmic', min: low, max: high, ticks: {maxRotation: 0,
    callback: (value) => {
      const digit = Number(value.toExponential(3).split('e')[0]);
      return digit === 1 || (few && (digit === 2 || digit === 5)) ? `${Number(value.toPrecision(3))}` : '';
    }}});
}

function roofline() {
  const roof = data.roofline;
  if (!roof) return missing('roofline', 'html.roofline', 'html.roofline.missing');
  const {canvas, box} = chartBox();
  box.classList.add('high');
  const groups = [...new Set(roof.points.map((p) => `${p.kind}|${p.phase}`))];
  section('roofline', 'html.roofline', make('p', {class: 'soft small'}, roof.hardware
    ? say('html.roofline.roofs', {gpu: roof.hardware.name, bw: roof.hardware.gb_per_s.toFixed(0),
      tflops: roof.hardware.tflops.toFixed(0)}) : say('html.roofline.unknown')), box, rooflineTable(roof));
  chart(canvas, () => {
    const datasets = groups.map((group) => {
      const [kind, phase] = group.split('|');
      return {label: `${kindWord(kind)}, ${say(`phase.${phase}`)}`, borderWidth: 1,
        backgroundColor: colourOf(kind), borderColor: cssColour('--card'),
        pointStyle: phase === 'decode' ? 'circle' : 'triangle', pointRadius: 6, pointHoverRadius: 8,
        data: roof.points.filter((p) => `${p.kind}|${p.phase}` === group)
          .map((p) => ({x: p.intensity, y: p.tflops, p}))};
    });
    const ends = (values) => [Math.min(...values) / 2, Math.max(...values) * 2];
    let [[left, right], [bottom, top]] = [ends(roof.points.map((p) => p.intensity)),
      ends(roof.points.map((p) => p.tflops))];
    if (roof.hardware) {
      const {gb_per_s: bandwidth, tflops} = roof.hardware;
      const ridge = tflops * 1e3 / bandwidth;
      right = Math.max(right, ridge * 4);
      top = Math.max(top, tflops * 1.6);
      left = Math.min(left, ridge / 10);
      bottom = Math.min(bottom, left * bandwidth / 1e3);
      datasets.push({label: say('html.roofline.roof', {gpu: roof.hardware.name}), type: 'line',
        pointRadius: 0, pointStyle: 'line', borderWidth: 2, borderColor: cssColour('--soft'),
        backgroundColor: 'transparent',
        data: [[left, left * bandwidth / 1e3], [ridge, tflops], [right, tflops]]
          .map(([x, y]) => ({x, y}))});
    }
    return {type: 'scatter', data: {datasets}, options: {
      scales: {x: logAxis(say('html.intensity'), left, right), y: logAxis('TFLOP/s', bottom, top)},
      onClick: (event, hits) => {
        const point = hits.length ? datasets[hits[0].datasetIndex].data[hits[0].index].p : null;
        if (point) showSlice(point.slice);
      },
      plugins: {legend: {position: 'bottom', labels: {usePointStyle: true, font: {size: 11}}},
        tooltip: {filter: (c) => c.raw.p !== undefined, callbacks: {label: (c) =>
          `${c.raw.p.count} x ${c.raw.p.name}: ${microseconds(c.raw.p.us)}, ` +
          `${c.raw.p.gb_per_s.toFixed(0)} GB/s, ${c.raw.p.tflops.toPrecision(3)} TFLOP/s`}}},
    }};
  });
}

function rooflineTable(roof) {
  const heads = ['html.roofline.call', 'report.phase', 'html.roofline.count', 'html.roofline.time'];
  const share = (p) => {
    if (!roof.hardware) return '-';
    const bound = Math.min(roof.hardware.tflops, p.intensity * roof.hardware.gb_per_s / 1e3);
    return `${(100 * p.tflops / bound).toFixed(0)}%`;
  };
  const shown = (p) => data.timeline?.slices.some((s) => s[6] === p.slice);
  return make('div', {class: 'scroll'}, make('table', {},
    make('thead', {}, make('tr', {}, ...heads.map((h) => make('th', {}, say(h))),
      make('th', {}, 'GB/s'), make('th', {}, 'TFLOP/s'), make('th', {}, say('html.roofline.share')))),
    make('tbody', {}, ...roof.points.slice(0, 20).map((p) => {
      const cell = (head, text) => make('td', {'data-head': head}, text);
      return make('tr', {},
        make('td', {}, p.name, shown(p) ? make('button', {class: 'show', onclick: () => showSlice(p.slice)},
          say('html.show')) : null),
        make('td', {}, say(`phase.${p.phase}`)), cell(say('html.roofline.count'), `${p.count}`),
        cell(say('html.roofline.time'), microseconds(p.us)), cell('GB/s', p.gb_per_s.toFixed(0)),
        cell('TFLOP/s', p.tflops.toPrecision(3)), cell(say('html.roofline.share'), share(p)));
    }))));
}

function missing(id, titleKey, whyKey) {
  if (data.picture === 'all') {
    absent.push(`${say(titleKey)}: ${say(whyKey)}`);
  } else {
    section(id, titleKey, make('p', {class: 'soft'}, say(whyKey)));
  }
}
const absent = [];

// --- pictures ---

function timelineView() {
  if (!data.timeline) return missing('timeline', 'html.timeline', 'html.timeline.missing');
  const canvas = make('canvas', {class: 'picture', tabindex: '0', 'aria-label': say('html.timeline')});
  const detail = make('p', {class: 'detail mono', id: 'detail', 'aria-live': 'polite'},
    say(data.timeline.note));
  const button = (text, label, act) => make('button', {'aria-label': label, onclick: act}, text);
  section('timeline', 'html.timeline',
    make('div', {class: 'row'}, button('⇤', say('html.previous_step'), () => timeline.step(-1)),
      button('⇥', say('html.next_step'), () => timeline.step(1)), button('+', say('html.zoom_in'), () => timeline.zoom(0.5)),
      button('−', say('html.zoom_out'), () => timeline.zoom(2)),
      button('←', say('html.left'), () => timeline.pan(-0.3)),
      button('→', say('html.right'), () => timeline.pan(0.3)),
      button(say('html.whole'), say('html.whole'), () => timeline.reset())),
    detail, canvas, legendOf(new Set(data.timeline.slices.map((s) => data.timeline.names[s[5]]))));
  timeline = new TimelinePicture(canvas, data.timeline, (text) => { detail.textContent = text; });
  redraws.push(() => timeline.draw());
}

function legendOf(kinds) {
  const items = [...kinds].filter((k) => kColours[k] && !data.words[`phase.${k}`])
    .map((k) => {
      const colour = make('i');
      colour.style.background = colourOf(k);
      return make('span', {}, colour, kindWord(k));
    });
  return make('div', {class: 'legend'}, ...items);
}

function heatMap() {
  const heat = data.heatmap;
  if (!heat) return missing('heatmap', 'html.heatmap', 'html.heatmap.missing');
  const totals = new Map();
  for (const [, , kind, us] of heat.cells) totals.set(kind, (totals.get(kind) ?? 0) + us);
  const kinds = [...totals].sort((a, b) => b[1] - a[1]).map(([kind]) => kind);
  const select = make('select', {'aria-label': say('html.class')},
    make('option', {value: ''}, say('html.all_classes')),
    ...kinds.map((k) => make('option', {value: k}, kindWord(k))));
  const [layers, classes] = [make('canvas', {class: 'picture'}), make('canvas', {class: 'picture'})];
  const note = make('p', {class: 'soft small'});
  section('heatmap', 'html.heatmap', note, make('div', {class: 'row'}, select), layers,
          make('h3', {}, say('html.heatmap.by_class')), classes);
  const cell = (key, name) => (row, column, us) => say('html.heatmap.cell',
    {what: `${say(key)} ${name(row)}`, step: heat.steps[column], time: microseconds(us)});
  const byLayer = new HeatPicture(layers, {row: say('html.layer'), column: say('html.decode_step')},
    cell('html.layer', (row) => row), microseconds);
  const byClass = new HeatPicture(classes, {row: say('html.class'), column: say('html.decode_step')},
    cell('html.class', (row) => kindWord(kinds[row])), microseconds);
  const columns = heat.steps.map(String);
  const draw = () => {
    const values = Array.from({length: heat.layers}, () => heat.steps.map(() => 0));
    for (const [column, layer, kind, us] of heat.cells) {
      if (!select.value || kind === select.value) values[layer][column] += us;
    }
    const top = Math.max(...values.flat());
    note.textContent = say('html.heatmap.note', {top: microseconds(top)});
    byLayer.draw(values, values.map((_, i) => `${i}`), columns, top);
  };
  const drawClasses = () => {
    const values = kinds.map(() => heat.steps.map(() => 0));
    for (const [column, , kind, us] of heat.cells) values[kinds.indexOf(kind)][column] += us;
    byClass.draw(values, kinds.map(kindWord), columns, Math.max(...values.flat()));
  };
  select.addEventListener('change', draw);
  redraws.push(draw, drawClasses);
}

function addressMap() {
  const map = data.address;
  const canvas = make('canvas', {class: 'picture'});
  section('address', 'html.address', make('p', {class: 'soft small'}, map.note), canvas);
  const columns = map.values[0].map((_, c) => `${map.first_token + c * map.tokens_per_column}`);
  const formats = {ns: (v) => microseconds(v / 1e3), bytes: bytesText};
  const format = formats[map.unit] ?? ((v) => `${Number(v.toPrecision(3))}`);
  const axes = {row: say('html.address.rows'), column: say('html.address.columns')};
  const picture = new HeatPicture(canvas, axes, (row, column, value) =>
    `${axes.row} ${map.rows[row]}, ${axes.column} ${columns[column]}: ${format(value)}`, format);
  redraws.push(() => picture.draw(map.values, map.rows, columns,
    Math.max(...map.values.flat().filter((v) => v !== null))));
}

function flame() {
  if (!data.flame) return missing('flame', 'html.flame', 'html.flame.missing');
  const canvas = make('canvas', {class: 'picture'});
  const detail = make('p', {class: 'detail soft small'}, say('html.flame.note'));
  section('flame', 'html.flame', detail, canvas);
  const picture = new FlamePicture(canvas, data.flame, (text) => { detail.textContent = text; });
  redraws.push(() => picture.draw());
}

function experts() {
  if (!data.experts) return missing('experts', 'html.experts', 'html.experts.missing');
  const canvas = make('canvas', {class: 'picture'});
  section('experts', 'html.experts', canvas,
          make('p', {class: 'soft small'}, say('html.experts.note')));
  const rows = data.experts.map((layer) => {
    const mean = layer.experts.reduce((sum, [, n]) => sum + n, 0) / layer.experts.length;
    return layer.experts.map(([, n]) => (mean > 0 ? n / mean : 0));
  });
  const axes = {row: say('html.layer'), column: say('html.expert')};
  const picture = new HeatPicture(canvas, axes, (row, column, ratio) => say('html.experts.cell',
    {layer: data.experts[row].layer, expert: data.experts[row].experts[column][0],
      ratio: ratio.toFixed(2), tokens: data.experts[row].experts[column][1]}), (v) => `${v.toFixed(1)}x`);
  const longest = data.experts.reduce((a, b) => (a.experts.length >= b.experts.length ? a : b));
  redraws.push(() => picture.draw(rows, data.experts.map((l) => `${l.layer}`),
    longest.experts.map(([expert]) => `${expert}`), Math.max(2, ...rows.flat())));
}

// One moment in all lanes of a clock: where the pointer is.
const cursor = {clock: null, t: 0};
const cursorLine = {
  id: 'cursor',
  afterDatasetsDraw(chart) {
    const {clock, bands} = chart.options.plugins.cursor;
    const {ctx, chartArea: {top, bottom, left, right}, scales: {x}} = chart;
    ctx.save();
    ctx.fillStyle = cssColour('--band');
    for (const [from, to] of bands ?? []) {
      const [a, b] = [Math.max(left, x.getPixelForValue(from)), Math.min(right, x.getPixelForValue(to))];
      if (b > a) ctx.fillRect(a, top, Math.max(b - a, 3), bottom - top);
    }
    if (cursor.clock === clock) {
      const at = x.getPixelForValue(cursor.t);
      ctx.strokeStyle = cssColour('--soft');
      ctx.beginPath();
      ctx.moveTo(at, top);
      ctx.lineTo(at, bottom);
      ctx.stroke();
    }
    ctx.restore();
  },
};

// Lanes of one clock share an axis, a cursor, and the stretches of time that the trace covers.
function lanes() {
  if (!data.lanes.length) return missing('lanes', 'html.lanes', 'html.lanes.missing');
  const ends = {};
  for (const lane of data.lanes) {
    const end = ends[lane.clock] ??= [Infinity, -Infinity];
    end[0] = Math.min(end[0], lane.t[0]);
    end[1] = Math.max(end[1], lane.t.at(-1));
  }
  const charts = [];
  const boxes = data.lanes.map((lane) => {
    const {canvas, box} = chartBox(true);
    const value = make('b', {});
    const [start, end] = ends[lane.clock];
    const bands = data.trace_windows.filter(([clock]) => clock === lane.clock)
      .map(([, from, to]) => [from - start, to - start]);
    const entry = {lane, value, chart: () => null, start};
    charts.push(entry);
    chart(canvas, () => ({
      type: 'line',
      data: {datasets: [{data: lane.t.map((t, i) => ({x: t - start, y: lane.v[i]})),
        borderColor: cssColour('--accent'), borderWidth: 1.5, pointRadius: 0, fill: false}]},
      options: {plugins: {legend: {display: false}, tooltip: {enabled: false}, cursor: {clock: lane.clock, bands}},
        scales: {x: {type: 'linear', min: 0, max: end - start, ticks: {maxRotation: 0, includeBounds: false, callback: (v) => `${v} s`}},
          // The same room for the numbers everywhere, so that moments lie above each other.
          y: {beginAtZero: true, ticks: {maxTicksLimit: 4}, afterFit: (scale) => { scale.width = 52; }}}},
      plugins: [cursorLine],
    }), (made) => { entry.chart = () => made; });
    canvas.addEventListener('pointermove', (event) => {
      const made = entry.chart();
      moveCursor(charts, lane.clock, made.scales.x.getValueForPixel(event.offsetX));
    });
    canvas.addEventListener('pointerleave', () => moveCursor(charts, null, 0));
    return make('div', {}, make('div', {class: 'small'},
      `${say(`html.lane.${lane.key}`)}${lane.device >= 0 ? ` · GPU ${lane.device}` : ''}` +
      `${lane.unit ? ` · ${lane.unit}` : ''} `, make('span', {class: 'soft'}, lane.name), ' ', value), box);
  });
  const traced = data.lanes.some((l) => data.trace_windows.some(([clock]) => clock === l.clock));
  section('lanes', 'html.lanes', make('p', {class: 'soft small'}, say('html.lanes.note') +
    (traced ? ` ${say('html.lanes.traced')}` : '')), ...boxes);
}

function moveCursor(charts, clock, t) {
  cursor.clock = clock;
  cursor.t = t;
  for (const {lane, value, chart, start} of charts) {
    if (lane.clock === clock) {
      const next = lane.t.findIndex((x) => x - start >= t);
      const at = next <= 0 ? (next < 0 ? lane.t.length - 1 : 0)
        : t - (lane.t[next - 1] - start) < lane.t[next] - start - t ? next - 1 : next;
      value.textContent = lane.v[at] === null ? '' : `${Number(lane.v[at].toPrecision(3))} ${lane.unit}`;
    } else {
      value.textContent = '';
    }
    chart()?.draw();
  }
}

function undecided() {
  const lines = data.abstained.map((a) => make('li', {}, `${a.why}: `,
    make('span', {class: 'soft'}, a.ids.join(', '))));
  if (lines.length) section('abstained', 'report.abstained', make('ul', {}, ...lines));
  if (report.clean.length) {
    section('clean', 'report.clean', make('p', {}, report.clean.join(', ')));
  }
  if (absent.length) {
    section('absent', 'html.absent', make('ul', {class: 'soft small'},
      ...absent.map((a) => make('li', {}, a))));
  }
}

function all() {
  header();
  machine();
  phases();
  findings();
  timelineView();
  stepBars();
  tailBars();
  gapCauses();
  roofline();
  heatMap();
  flame();
  experts();
  lanes();
  undecided();
  contents();
}

// Links to the parts, under the title.
function contents() {
  const parts = [...page.querySelectorAll('section')].filter((s) => s.id !== 'trust');
  document.getElementById('headline').after(make('nav', {class: 'row small'}, ...parts.map((s) =>
    make('a', {href: `#${s.id}`}, s.querySelector('h2').textContent))));
}

({all, heatmap: heatMap, roofline, flame, address: addressMap})[data.picture]();
const redraw = (themeChanged) => { for (const r of redraws) r(themeChanged); };
redraw(true);
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => redraw(true));
let waiting = 0;
addEventListener('resize', () => {
  clearTimeout(waiting);
  waiting = setTimeout(() => redraw(false), 100);
});
document.body.dataset.ready = 'true';
