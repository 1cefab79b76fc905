'use strict';
// Drawn here because no chart library draws them: timeline, flame graph, heat maps.

const kColours = {
  gemm: '#4e79a7', attention: '#d1495b', rope: '#b07aa1', norm: '#5fa8a3', softmax: '#e88a9a',
  copy: '#f28e2b', cat: '#d9a514', 'cache-write': '#8d99ae', gate: '#9c755f', expert: '#59a14f',
  collective: '#c65b93', sampling: '#6cb5ad', embedding: '#7fbf6e', quantise: '#3d8a88',
  activation: '#84b6dd', elementwise: '#a58c2f', reduction: '#b98fb0', 'memcpy-device': '#f2713c',
  'memcpy-host': '#e0523a', memset: '#a9b0ba', graph: '#6b7bd6', unclassified: '#8a8f98',
  'idle:launch-bound': '#e2a29b', 'idle:sync-call': '#e6bf87', 'idle:allocator': '#cdb4db',
  'idle:plan-building': '#f4a9c0', 'idle:module-load': '#d8c3a5', 'idle:preempted': '#bfc9a8',
  'idle:profiler': '#c9ced6', 'idle:queued': '#b7d3de', 'idle:unknown': '#d5d5d5',
  prefill: '#7b6fc4', decode: '#3a8f6b', mixed: '#c08a2e', unknown: '#8a8f98',
};

function cssColour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function colourOf(kind) {
  return kColours[kind] ?? cssColour('--cpu');
}

// A canvas as wide as its element and `height` CSS pixels high, sharp on any screen.
function fitCanvas(canvas, height) {
  const ratio = window.devicePixelRatio || 1;
  const width = canvas.clientWidth || canvas.parentElement.clientWidth;
  canvas.style.height = `${height}px`;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const context = canvas.getContext('2d');
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  context.font = '11px system-ui, sans-serif';
  context.textBaseline = 'middle';
  return {context, width, height};
}

function microseconds(us) {
  if (us >= 1e6) return `${(us / 1e6).toPrecision(3)} s`;
  if (us >= 1e3) return `${(us / 1e3).toPrecision(3)} ms`;
  if (us >= 1) return `${us.toPrecision(3)} us`;
  return `${Math.round(us * 1e3)} ns`;
}

function showTip(event, text) {
  const tip = document.getElementById('tip');
  tip.hidden = !text;
  if (!text) return;
  tip.textContent = text;
  const {width, height} = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(event.clientX + 12, window.innerWidth - width - 8))}px`;
  const below = event.clientY + 14;
  tip.style.top = `${below + height > window.innerHeight ? event.clientY - height - 10 : below}px`;
}

// Text that fits into `space` pixels, or nothing.
function fillLabel(context, text, x, y, space) {
  if (space < 24) return;
  const most = Math.floor(space / 6.4);
  context.fillText(text.length > most ? `${text.slice(0, most - 1)}…` : text, x, y);
}

// Slices of threads and streams, [start, duration, name, track, depth, kind, id] in microseconds.
class TimelinePicture {
  constructor(canvas, data, onSelect) {
    this.canvas = canvas;
    this.data = data;
    this.onSelect = onSelect;
    this.selected = null;
    const order = {step: 0, gap: 1, gpu: 2, cpu: 3};
    const depth = new Map();
    for (const s of data.slices) depth.set(s[3], Math.max(depth.get(s[3]) ?? 0, s[4]));
    this.rows = data.tracks.map((t, i) => ({...t, id: i, depth: (depth.get(i) ?? 0) + 1}))
      .sort((a, b) => order[a.kind] - order[b.kind] || a.name.localeCompare(b.name));
    this.byTrack = data.tracks.map(() => []);
    for (const s of data.slices) this.byTrack[s[3]].push(s);
    for (const list of this.byTrack) list.sort((a, b) => a[0] - b[0]);
    this.first = Math.min(...this.rows.map((r) => this.byTrack[r.id][0]?.[0] ?? Infinity));
    this.last = data.slices.reduce((end, s) => Math.max(end, s[0] + s[1]), this.first + 1);
    this.from = this.first;
    this.to = this.last;
    this.listen();
    this.draw();
  }

  layout() {
    let y = 20;
    for (const row of this.rows) {
      row.y = y + 13;
      y = row.y + row.depth * 15 + 6;
    }
    return y;
  }

  draw() {
    const {context, width, height} = fitCanvas(this.canvas, this.layout());
    this.width = width;
    const ink = cssColour('--ink');
    const soft = cssColour('--soft');
    const scale = width / (this.to - this.from);
    this.drawAxis(context, height, scale, soft);
    for (const row of this.rows) {
      context.fillStyle = soft;
      context.fillText(row.kind === 'step' ? say('report.steps') : row.kind === 'gap'
        ? say('html.idle') : row.name, 2, row.y - 7);
      let drawn = -1;  // right edge of what is already painted at depth 0: skip what nobody sees
      for (const s of this.byTrack[row.id]) {
        const x = (s[0] - this.from) * scale;
        const w = Math.max(s[1] * scale, 0.6);
        if (x + w < 0 || x > width) continue;
        const chosen = s === this.selected;
        if (row.depth === 1 && x + w <= drawn + 0.5 && !chosen) continue;
        drawn = Math.max(drawn, x + w);
        const y = row.y + s[4] * 15;
        context.fillStyle = colourOf(this.data.names[s[5]]);
        context.fillRect(x, y, w, 13);
        if (chosen) {
          context.strokeStyle = ink;
          context.lineWidth = 2;
          context.strokeRect(x - 1, y - 1, w + 2, 15);
        }
        context.fillStyle = row.kind === 'cpu' ? ink : row.kind === 'gap' ? '#222' : '#fff';
        fillLabel(context, this.label(s), Math.max(x, 0) + 3, y + 7,
                  Math.min(x + w, width) - Math.max(x, 0) - 6);
      }
    }
  }

  drawAxis(context, height, scale, soft) {
    const step = 10 ** Math.floor(Math.log10((this.to - this.from) / 4));
    const every = (this.to - this.from) / step > 12 ? step * 2 : step;
    context.strokeStyle = cssColour('--grid');
    context.lineWidth = 1;
    const begin = this.first + Math.ceil((this.from - this.first) / every) * every;
    for (let t = begin; t < this.to; t += every) {
      const x = (t - this.from) * scale;
      context.beginPath();
      context.moveTo(x, 16);
      context.lineTo(x, height);
      context.stroke();
      context.fillStyle = soft;
      if (x < this.width - 60) context.fillText(microseconds(t - this.first), x + 2, 8);
    }
  }

  label(s) {
    const name = this.data.names[s[2]];
    return this.data.tracks[s[3]].kind === 'gap' || this.data.tracks[s[3]].kind === 'step'
      ? kindWord(name) : name;
  }

  at(event) {
    const box = this.canvas.getBoundingClientRect();
    const x = event.clientX - box.left;
    const y = event.clientY - box.top;
    const t = this.from + x / this.width * (this.to - this.from);
    const slack = 2 * (this.to - this.from) / this.width;
    const row = this.rows.find((r) => y >= r.y && y < r.y + r.depth * 15);
    if (!row) return null;
    const depth = Math.floor((y - row.y) / 15);
    let best = null;
    for (const s of this.byTrack[row.id]) {
      if (s[0] > t + slack) break;
      if (s[4] === depth && t <= s[0] + s[1] + slack && (!best || s[1] <= best[1])) best = s;
    }
    return best;
  }

  describe(s) {
    return `${this.label(s)} · ${microseconds(s[1])} · ${kindWord(this.data.names[s[5]])} · ` +
      `${this.data.tracks[s[3]].name} · +${microseconds(Math.max(0, s[0] - this.first))}`;
  }

  select(s) {
    this.selected = s;
    this.draw();
    if (s) this.onSelect(this.describe(s));
  }

  // Shows the slice with that id in its surroundings; false when it is not in the picture.
  jump(id) {
    const s = this.data.slices.find((x) => x[6] === id);
    if (!s) return false;
    const around = Math.max(s[1] * 6, (this.last - this.first) / 2000);
    this.from = Math.max(this.first, s[0] + s[1] / 2 - around);
    this.to = Math.min(this.last, s[0] + s[1] / 2 + around);
    this.select(s);
    return true;
  }

  zoom(factor, centre = 0.5) {
    const t = this.from + centre * (this.to - this.from);
    const span = Math.min(this.last - this.first, Math.max(1, (this.to - this.from) * factor));
    this.from = Math.max(this.first, Math.min(t - centre * span, this.last - span));
    this.to = this.from + span;
    this.draw();
  }

  pan(share) {
    const span = this.to - this.from;
    this.from = Math.max(this.first, Math.min(this.from + share * span, this.last - span));
    this.to = this.from + span;
    this.draw();
  }

  reset() {
    this.from = this.first;
    this.to = this.last;
    this.select(null);
  }

  listen() {
    let grip = null;
    this.canvas.addEventListener('wheel', (event) => {
      if (!event.ctrlKey && !event.shiftKey) return;  // a plain wheel scrolls the page
      event.preventDefault();
      const box = this.canvas.getBoundingClientRect();
      if (event.shiftKey) {
        this.pan(Math.sign(event.deltaY || event.deltaX) * 0.1);
      } else {
        this.zoom(event.deltaY > 0 ? 1.25 : 0.8, (event.clientX - box.left) / box.width);
      }
    }, {passive: false});
    this.canvas.addEventListener('pointerdown', (event) => {
      grip = {x: event.clientX, moved: false};
      this.canvas.setPointerCapture(event.pointerId);
    });
    this.canvas.addEventListener('pointermove', (event) => {
      if (grip) {
        const dx = event.clientX - grip.x;
        if (Math.abs(dx) > 3 || grip.moved) {
          grip.moved = true;
          this.pan(-dx / this.width);
          grip.x = event.clientX;
        }
      } else {
        const s = this.at(event);
        showTip(event, s ? this.describe(s) : '');
      }
    });
    this.canvas.addEventListener('pointerup', (event) => {
      if (grip && !grip.moved) this.select(this.at(event));
      grip = null;
    });
    this.canvas.addEventListener('pointercancel', () => { grip = null; });
    this.canvas.addEventListener('pointerleave', (event) => showTip(event, ''));
    this.canvas.addEventListener('keydown', (event) => {
      const act = {'+': () => this.zoom(0.7), '-': () => this.zoom(1.4), ArrowLeft: () => this.pan(-0.2),
        ArrowRight: () => this.pan(0.2), 0: () => this.reset()}[event.key];
      if (!act) return;
      event.preventDefault();
      act();
    });
  }
}

// Frames below their callers; a click makes a frame the whole width.
class FlamePicture {
  constructor(canvas, data, onSelect) {
    this.canvas = canvas;
    this.data = data;
    this.onSelect = onSelect;
    this.root = data.root;
    canvas.addEventListener('pointermove', (event) => {
      const box = this.at(event);
      showTip(event, box ? this.describe(box.node) : '');
    });
    canvas.addEventListener('pointerleave', (event) => showTip(event, ''));
    canvas.addEventListener('click', (event) => {
      const box = this.at(event);
      this.root = box && box.node !== this.root ? box.node : this.data.root;
      this.draw();
      this.onSelect(this.describe(this.root));
    });
    this.draw();
  }

  describe(node) {
    const share = (100 * node.v / this.data.root.v).toFixed(1);
    const value = this.data.unit === 'ms' ? microseconds(node.v * 1e3) : `${node.v}`;
    return `${node.n} · ${value} · ${share} %`;
  }

  draw() {
    const depthOf = (node) => 1 + Math.max(0, ...(node.c ?? []).map(depthOf));
    const depth = Math.min(depthOf(this.root), 40);
    const {context, width} = fitCanvas(this.canvas, depth * 17 + 2);
    this.boxes = [];
    const place = (node, x, w, level) => {
      if (w < 0.7 || level >= 40) return;
      this.boxes.push({node, x, w, y: level * 17});
      let hash = 0;
      for (const c of node.n) hash = (hash * 31 + c.codePointAt(0)) % 997;
      context.fillStyle = `hsl(${18 + hash % 38} ${58 + hash % 20}% ${52 + hash % 12}%)`;
      context.fillRect(x, level * 17, Math.max(w - 0.5, 0.5), 16);
      context.fillStyle = '#1d1206';
      fillLabel(context, node.n, x + 3, level * 17 + 8, w - 6);
      let at = x;
      for (const child of node.c ?? []) {
        place(child, at, child.v / node.v * w, level + 1);
        at += child.v / node.v * w;
      }
    };
    place(this.root, 0, width, 0);
  }

  at(event) {
    const box = this.canvas.getBoundingClientRect();
    const x = event.clientX - box.left;
    const y = event.clientY - box.top;
    return this.boxes.find((b) => x >= b.x && x < b.x + b.w && y >= b.y && y < b.y + 17);
  }
}

function mix(a, b, share) {
  const parse = (c) => [1, 3, 5].map((i) => parseInt(c.slice(i, i + 2), 16));
  const [x, y] = [parse(a), parse(b)];
  return `rgb(${x.map((v, i) => Math.round(v + (y[i] - v) * share)).join(' ')})`;
}

// rows x columns of numbers (null: nothing there) from cssColour low to high.
class HeatPicture {
  constructor(canvas, describe) {
    this.canvas = canvas;
    this.describe = describe;
    canvas.addEventListener('pointermove', (event) => {
      const box = canvas.getBoundingClientRect();
      const column = Math.floor((event.clientX - box.left - 34) / this.cellWidth);
      const row = Math.floor((event.clientY - box.top) / this.cellHeight);
      const value = this.values?.[row]?.[column];
      showTip(event, value == null ? '' : this.describe(row, column, value));
    });
    canvas.addEventListener('pointerleave', (event) => showTip(event, ''));
  }

  draw(values, top) {
    this.values = values;
    const columns = Math.max(...values.map((r) => r.length));
    this.cellHeight = Math.max(5, Math.min(22, 420 / values.length));
    const {context, width} = fitCanvas(this.canvas, this.cellHeight * values.length + 16);
    this.cellWidth = (width - 36) / columns;
    const low = cssColour('--low');
    const high = cssColour('--high');
    const every = Math.ceil(14 / this.cellHeight);
    values.forEach((row, r) => {
      context.fillStyle = cssColour('--soft');
      if (r % every === 0) context.fillText(`${r}`, 2, (r + 0.5) * this.cellHeight);
      row.forEach((value, c) => {
        if (value == null) return;
        context.fillStyle = mix(low, high, top > 0 ? Math.min(1, value / top) : 0);
        context.fillRect(34 + c * this.cellWidth, r * this.cellHeight,
                         Math.max(this.cellWidth - 0.6, 0.6), Math.max(this.cellHeight - 0.6, 0.6));
      });
    });
    context.fillStyle = cssColour('--soft');
    const y = this.cellHeight * values.length + 8;
    const labels = Math.max(1, Math.ceil(columns / (width / 60)));
    for (let c = 0; c < columns; c += labels) context.fillText(`${c}`, 34 + c * this.cellWidth, y);
  }
}
