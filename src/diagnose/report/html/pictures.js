'use strict';
// Drawn here because no chart library draws them: timeline, flame graph, heat maps.

// Of kernel classes, "idle:cause" and phases.
const kColours = JSON.parse(document.getElementById('data').textContent).colours;

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
  if (us === 0) return '0';
  if (us >= 1e6) return `${(us / 1e6).toPrecision(3)} s`;
  if (us >= 1e3) return `${(us / 1e3).toPrecision(3)} ms`;
  if (us >= 1) return `${us.toPrecision(3)} us`;
  return `${Math.round(us * 1e3)} ns`;
}

function bytesText(bytes) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  const unit = bytes < 1 ? 0 : Math.min(units.length - 1, Math.floor(Math.log2(bytes) / 10));
  return `${Number((bytes / 1024 ** unit).toPrecision(3))} ${units[unit]}`;
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
    this.steps = this.rows.filter((r) => r.kind === 'step').flatMap((r) => this.byTrack[r.id])
      .sort((a, b) => a[0] - b[0]);
    this.from = this.first;
    this.to = this.last;
    // Few steps far apart would be slivers between nothing: the first one fills the picture then.
    const shown = this.steps.reduce((sum, s) => sum + s[1], 0);
    if (shown > 0 && shown < 0.25 * (this.last - this.first)) this.show(this.steps[0]);
    this.listen();
    this.draw();
  }

  // The slice and a little of what is around it.
  show(s) {
    this.from = Math.max(this.first, s[0] - 0.05 * s[1]);
    this.to = Math.min(this.last, s[0] + 1.05 * s[1]);
  }

  // To the next shown step, or the previous one.
  step(direction) {
    const middle = (this.from + this.to) / 2;
    const ahead = direction > 0 ? this.steps.find((s) => s[0] > middle)
      : this.steps.findLast((s) => s[0] + s[1] < middle);
    if (!ahead) return;
    this.show(ahead);
    this.select(ahead);
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
      context.fillText(row.kind === 'step' ? say('html.steps_row') : row.kind === 'gap'
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
        fillLabel(context, this.shortLabel(s), Math.max(x, 0) + 3, y + 7,
                  Math.min(x + w, width) - Math.max(x, 0) - 6);
      }
    }
  }

  drawAxis(context, height, scale, soft) {
    // The shortest of 1, 2, 5 times a power of ten whose labels do not touch.
    const least = (this.to - this.from) * 64 / this.width;
    const power = 10 ** Math.floor(Math.log10(least));
    const every = [1, 2, 5, 10].map((n) => n * power).find((t) => t >= least);
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

  // A kernel's return type says nothing, and would be all that a short box shows.
  shortLabel(s) {
    return this.label(s).replace(/^void /, '').replace(/^\(anonymous namespace\)::/, '');
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
        ArrowRight: () => this.pan(0.2), n: () => this.step(1), p: () => this.step(-1),
        0: () => this.reset()}[event.key];
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
    const value = this.data.unit === 'ms' ? microseconds(node.v * 1e3)
      : `${Number(node.v.toPrecision(3))} ${this.data.unit}`;
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

// rows x columns of numbers (null: nothing there) from cssColour low to high, with a scale.
class HeatPicture {
  // axes: {row, column}; describe(row, column, value) is the tip; format(value) a scale's mark.
  constructor(canvas, axes, describe, format) {
    this.canvas = canvas;
    this.axes = axes;
    this.describe = describe;
    this.format = format;
    canvas.addEventListener('pointermove', (event) => {
      const box = canvas.getBoundingClientRect();
      const column = Math.floor((event.clientX - box.left - this.left) / this.cellWidth);
      const row = Math.floor((event.clientY - box.top - this.top) / this.cellHeight);
      const value = this.values?.[row]?.[column];
      showTip(event, value == null ? '' : this.describe(row, column, value));
    });
    canvas.addEventListener('pointerleave', (event) => showTip(event, ''));
  }

  draw(values, rowLabels, columnLabels, most) {
    this.values = values;
    this.top = 18;
    this.cellHeight = Math.max(6, Math.min(22, 420 / values.length));
    const bottom = this.top + this.cellHeight * values.length;
    const {context, width} = fitCanvas(this.canvas, bottom + 72);
    const widest = (labels) => Math.max(...labels.map((l) => context.measureText(l).width));
    this.left = Math.min(widest(rowLabels), width / 3) + 8;
    this.cellWidth = (width - this.left - 2) / columnLabels.length;
    const [low, high, soft] = ['--low', '--high', '--soft'].map(cssColour);
    context.fillStyle = soft;
    context.fillText(this.axes.row, 0, 8);
    const everyRow = Math.ceil(13 / this.cellHeight);
    const everyColumn = Math.ceil((widest(columnLabels) + 14) / this.cellWidth);
    // Gaps between cells of a few pixels would be a pattern of their own.
    const gap = this.cellWidth < 8 ? -0.3 : 0.6;
    values.forEach((row, r) => {
      const y = this.top + r * this.cellHeight;
      context.fillStyle = soft;
      context.textAlign = 'right';
      if (r % everyRow === 0) context.fillText(rowLabels[r], this.left - 5, y + this.cellHeight / 2);
      row.forEach((value, c) => {
        if (value == null) return;
        context.fillStyle = mix(low, high, most > 0 ? Math.min(1, value / most) : 0);
        context.fillRect(this.left + c * this.cellWidth, y,
                         Math.max(this.cellWidth - gap, 0.6), Math.max(this.cellHeight - 0.6, 0.6));
      });
    });
    context.fillStyle = soft;
    context.textAlign = 'center';
    for (let c = 0; c < columnLabels.length; c += everyColumn) {
      context.fillText(columnLabels[c], this.left + (c + 0.5) * this.cellWidth, bottom + 9);
    }
    context.fillText(this.axes.column, (this.left + width) / 2, bottom + 25);
    this.drawScale(context, bottom + 42, Math.min(220, width - this.left), most, low, high);
  }

  drawScale(context, y, length, most, low, high) {
    for (let x = 0; x < length; x += 2) {
      context.fillStyle = mix(low, high, x / length);
      context.fillRect(this.left + x, y, 2, 8);
    }
    context.fillStyle = cssColour('--soft');
    const marks = [['left', 0], ['center', 0.5], ['right', 1]];
    const widths = marks.map(([, share]) => context.measureText(this.format(share * most)).width);
    marks.forEach(([align, share], i) => {
      // The middle one only where it keeps its distance from both others.
      if (i === 1 && widths[1] / 2 + Math.max(widths[0], widths[2]) + 10 > length / 2) return;
      context.textAlign = align;
      context.fillText(this.format(share * most), this.left + share * length, y + 15);
    });
    context.textAlign = 'left';
  }
}
