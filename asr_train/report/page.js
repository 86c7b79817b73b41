// The page's script: sortable tables, utterances, comparison of two runs, audio, zoomable curves.
// All texts enter the page as text, never as markup. The data are page.py's, in #data.
"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const SHOWN = 20; // utterances at a time

function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null));
  return node;
}

const percent = (share, digits = 2) => (100 * share).toFixed(digits);
const signed = (share) => ((share < 0 ? "−" : "+") + percent(Math.abs(share)));
const count = (n) => n.toLocaleString("en-US");

// --- tables -------------------------------------------------------------------------------------

// A cell's number, or seconds of "1 h 2 min" or "3 min 4 s"; its text if it begins with neither, or is a name as 12a.
function sortKey(text) {
  const time = /^(?:(\d+) h ?)?(?:(\d+) min ?)?(?:([\d.]+) s)?$/.exec(text.trim());
  if (time && time[0]) return 3600 * (time[1] ?? 0) + 60 * (time[2] ?? 0) + Number(time[3] ?? 0);
  const number = /^-?\d+(?:\.\d+)?(?:e[-+]?\d+)?(?=x?(?:[^\w.-]|$))/.exec(text.trim().replaceAll("−", "-").replaceAll(",", ""));
  return number ? Number(number[0]) : text.trim();
}

function compareKeys(a, b) {
  if (typeof a === "number" && typeof b === "number") return a - b;
  if (typeof a === typeof b) return a.localeCompare(b, "en", { numeric: true });
  return typeof a === "number" ? -1 : 1;
}

// Turn the headings of a table into buttons; `onSort(column, direction)` orders the rows.
function headings(table, onSort) {
  for (const [column, head] of [...table.tHead.rows[0].cells].entries()) {
    if (head.dataset.plain !== undefined) continue;
    const button = make("button", { type: "button" }, ...head.childNodes);
    button.addEventListener("click", () => {
      const number = head.dataset.first === "descending";
      const before = head.getAttribute("aria-sort");
      const up = before === null ? !number : before === "descending";
      for (const other of head.parentNode.cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      onSort(column, up ? 1 : -1);
    });
    head.replaceChildren(button);
  }
}

function sortRows(table, column, direction) {
  const body = table.tBodies[0];
  const keyed = [...body.rows].map((row) => [sortKey(row.cells[column].textContent), row]);
  keyed.sort((a, b) => direction * compareKeys(a[0], b[0]));
  body.append(...keyed.map(([, row]) => row));
}

// A cell that a spreadsheet would take for a formula is quoted.
function csvCell(text) {
  let cell = String(text);
  if (/^[=+@\t\r]|^-(?![\d.])/.test(cell)) cell = "'" + cell;
  return /[",\n\r]/.test(cell) ? '"' + cell.replaceAll('"', '""') + '"' : cell;
}

function download(name, rows) {
  const text = rows.map((row) => row.map(csvCell).join(",") + "\n").join("");
  const address = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
  make("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}

for (const table of document.querySelectorAll("table[data-name]")) {
  headings(table, (column, direction) => sortRows(table, column, direction));
  const rows = () => [...table.rows].map((row) => [...row.cells].map((cell) => cell.textContent));
  const name = `${table.dataset.name}.csv`;
  const save = make("button", { type: "button", onclick: () => download(name, rows()) }, "Save as CSV");
  save.setAttribute("aria-label", `Save ${name}`);
  table.closest(".scroll").after(make("div", { class: "below" }, save));
}

// --- utterances ---------------------------------------------------------------------------------

const chosen = { sort: "errors", direction: -1, shown: SHOWN };
const COLUMNS = {
  errors: (row) => row.errors,
  other: (row) => row.otherErrors,
  words: (row) => row.utterance.words.length,
  id: (row) => row.utterance.id,
  speaker: (row) => row.utterance.speaker,
  seconds: (row) => row.utterance.seconds,
};

const errorsOf = (edits) => edits.filter(([, , mark]) => mark !== "").length;

// Pairs of reference word, found word and mark, from a reference and its edits.
function aligned(words, edits) {
  const pairs = [];
  let next = 0;
  for (let at = 0; at <= words.length; at++) {
    let paired = at === words.length;
    for (; next < edits.length && edits[next][0] === at; next++) {
      const [, found, mark] = edits[next];
      if (mark === "I") pairs.push([null, found, mark]);
      else {
        pairs.push([words[at], found, mark]);
        paired = true;
      }
    }
    if (!paired) pairs.push([words[at], words[at], ""]);
  }
  return pairs;
}

const MEANING = { S: "substitution", D: "deletion", I: "insertion" };

function alignment(words, edits, label) {
  const line = make("div", { class: "line" }, label === null ? null : make("b", {}, label));
  for (const [said, found, mark] of aligned(words, edits)) {
    if (mark === "" && said === found) {
      line.append(make("span", { class: "pair" }, said));
      continue;
    }
    const what = MEANING[mark] || "no error";
    line.append(
      make("span", { class: `pair ${mark}`, title: `${what}: reference ${said ?? "none"}, hypothesis ${found ?? "none"}` },
        make("s", {}, said ?? "∗"), make("span", {}, found ?? "∗")),
    );
  }
  if (words.length === 0 && edits.length === 0) line.append("(no words)");
  return line;
}

function fill(select, choices, value) {
  select.replaceChildren(...choices.map(([v, text]) => make("option", { value: v }, text)));
  if (choices.some(([v]) => v === value)) select.value = value;
}

const form = byId("choose");

function state() {
  const split = data.splits[form.split.value];
  const run = split.runs.indexOf(form.run.value);
  const other = split.runs.indexOf(form.other.value);
  return { split, run, other };
}

function fillRuns() {
  const { split } = state();
  const before = [form.run.value, form.other.value];
  const best = split.counts.reduce((b, row, i) => (row[1] < split.counts[b][1] ? i : b), 0);
  const first = best === 0 ? 1 : 0;
  const runs = split.runs.map((run) => [run, run]);
  fill(form.run, runs, split.runs.includes(before[0]) ? before[0] : split.runs[best]);
  fill(form.other, [["", "none"], ...runs], before[0] ? before[1] : split.runs[first] ?? "");
  form.other.closest("label").hidden = runs.length < 2;
  const speakers = split.speakers.map((speaker) => [speaker.name, speaker.name]);
  fill(form.speaker, [["", "all"], ...speakers], form.speaker.value);
  form.speaker.closest("label").hidden = speakers.length < 2;
}

const SHOWS = {
  all: ["all", () => true],
  wrong: ["with errors", (row) => row.errors > 0],
  won: ["better: fewer errors", (row) => row.errors < row.otherErrors],
  lost: ["worse: more errors", (row) => row.errors > row.otherErrors],
  differ: ["different words", (row) => row.differ],
};

function fillShows() {
  const { run, other } = state();
  const usable = Object.entries(SHOWS).filter(([key]) => (other >= 0 && other !== run) || key === "all" || key === "wrong");
  fill(form.show, usable.map(([key, [text]]) => [key, text]), form.show.value);
}

function rowsOf({ split, run, other }) {
  return split.utterances.map((utterance) => {
    const edits = utterance.edits[run];
    const others = other >= 0 ? utterance.edits[other] : null;
    return {
      utterance,
      errors: errorsOf(edits),
      otherErrors: others ? errorsOf(others) : null,
      differ: others !== null && JSON.stringify(edits) !== JSON.stringify(others),
    };
  });
}

// Words as in an edit that was clicked: "A > B"; else any text of id, reference or hypothesis.
function matches(row, wanted, now) {
  if (wanted === "") return true;
  const { utterance } = row;
  const edit = wanted.split(" > ");
  if (edit.length === 2) {
    const [said, found] = edit.map((word) => (word === "∗" ? null : word));
    return aligned(utterance.words, utterance.edits[now.run]).some(
      ([a, b, mark]) => mark !== "" && a === said && b === found,
    );
  }
  const runs = [now.run, now.other].filter((run) => run >= 0);
  const texts = [utterance.id, utterance.words.join(" ")];
  for (const run of runs) {
    texts.push(aligned(utterance.words, utterance.edits[run]).map(([, b]) => b).filter(Boolean).join(" "));
  }
  return texts.some((text) => text.toUpperCase().includes(wanted.toUpperCase()));
}

let listed = [];

function chooseRows() {
  const now = state();
  const [, shows] = SHOWS[form.show.value] ?? SHOWS.all;
  const wanted = form.find.value.trim();
  const speaker = form.speaker.value;
  const key = COLUMNS[chosen.sort];
  listed = rowsOf(now).filter(
    (row) => shows(row) && (speaker === "" || row.utterance.speaker === speaker) && matches(row, wanted, now),
  );
  listed.sort(
    (a, b) => chosen.direction * compareKeys(key(a) ?? 0, key(b) ?? 0) || compareKeys(a.utterance.id, b.utterance.id),
  );
}

function listUtterances() {
  const now = state();
  chooseRows();
  const { split } = now;
  const rows = listed.slice(0, chosen.shown).map((row) => utteranceRow(row, now));
  byId("utterances").tBodies[0].replaceChildren(...rows);
  const cells = byId("utterances").tHead.rows[0].cells;
  const other = now.other >= 0 && now.other !== now.run;
  cells[2].hidden = !other;
  const errors = listed.reduce((sum, row) => sum + row.errors, 0);
  const hidden = split.all - split.utterances.length;
  byId("listed").textContent =
    `${count(listed.length)} of ${count(split.all)} utterances, ${count(errors)} errors by ${form.run.value}` +
    (listed.length > rows.length ? `; the first ${count(rows.length)} are shown` : "") +
    (hidden ? `; the page leaves out ${count(hidden)} with the fewest errors` : "") + ".";
  const more = byId("more");
  more.hidden = listed.length <= rows.length;
  more.textContent = `Show ${count(Math.min(SHOWN, listed.length - rows.length))} more`;
}

function utteranceRow(row, now) {
  const { utterance } = row;
  const compared = now.other >= 0 && now.other !== now.run;
  const shown = compared && row.differ ? [now.run, now.other] : [now.run];
  const name = (run) => (!compared ? null : row.differ ? now.split.runs[run] : `${form.run.value} and ${form.other.value}`);
  const spoken = make("td", { class: "spoken" },
    ...shown.map((run) => alignment(utterance.words, utterance.edits[run], name(run))));
  const open = make("button", { type: "button", "aria-expanded": "false", "aria-label": `Listen to ${utterance.id}` }, "▶");
  const cells = [
    make("td", {}, open),
    make("td", { class: "number", "data-label": "errors" }, String(row.errors)),
    make("td", { class: "number", "data-label": "other", hidden: !compared }, String(row.otherErrors ?? "")),
    make("td", { class: "number", "data-label": "words" }, String(utterance.words.length)),
    spoken,
    make("td", { class: "name" }, utterance.id),
    make("td", { class: "name", "data-label": "speaker" }, utterance.speaker),
    make("td", { class: "number", "data-label": "seconds" }, utterance.seconds.toFixed(1)),
  ];
  const line = make("tr", {}, ...cells);
  open.addEventListener("click", () => {
    const closing = open.getAttribute("aria-expanded") === "true";
    open.setAttribute("aria-expanded", String(!closing));
    open.textContent = closing ? "▶" : "▼";
    if (closing) line.nextSibling.remove();
    else {
      const detail = details(utterance, now);
      line.after(make("tr", {}, make("td", { colspan: cells.length }, detail)));
      detail.querySelector("audio")?.play().catch(() => {}); // the reader may forbid it
    }
  });
  return line;
}

function details(utterance, now) {
  const box = make("div", { class: "detail" });
  const heard = data.heard[form.split.value]?.[utterance.id];
  const source = heard ? `data:audio/flac;base64,${heard.flac}` : utterance.audio;
  if (source) {
    const audio = make("audio", { controls: true, preload: "metadata", src: source, "aria-label": utterance.id });
    const note = make("p", { class: "notes" }, heard ? "In this page." : `From ${utterance.audio}`);
    audio.addEventListener("error", () => {
      note.textContent = `${utterance.audio ?? utterance.id} cannot be played here: the file is not there, or this browser does not know its format.`;
    });
    box.append(audio, note);
    if (heard) spectrum(box, audio, utterance, heard, now.split.runs[now.run]);
  } else box.append(make("p", { class: "notes" }, "This utterance is no single audio file."));
  for (const [i, run] of now.split.runs.entries()) {
    if (i !== now.run && i !== now.other) box.append(alignment(utterance.words, utterance.edits[i], run));
  }
  return box;
}

// --- sound --------------------------------------------------------------------------------------

function bytesOf(base64) {
  return Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0)).buffer;
}

// In place: radix-2 Fourier transform of n = 2^k complex numbers.
function transform(re, im) {
  const n = re.length;
  for (let i = 1, j = 0; i < n; i++) {
    let bit = n >> 1;
    for (; j & bit; bit >>= 1) j ^= bit;
    j ^= bit;
    if (i < j) {
      [re[i], re[j]] = [re[j], re[i]];
      [im[i], im[j]] = [im[j], im[i]];
    }
  }
  for (let size = 2; size <= n; size <<= 1) {
    for (let k = 0; k < size / 2; k++) {
      const c = Math.cos((-2 * Math.PI * k) / size), s = Math.sin((-2 * Math.PI * k) / size);
      for (let a = k; a < n; a += size) {
        const b = a + size / 2;
        const x = re[b] * c - im[b] * s, y = re[b] * s + im[b] * c;
        [re[b], im[b]] = [re[a] - x, im[a] - y];
        [re[a], im[a]] = [re[a] + x, im[a] + y];
      }
    }
  }
}

// Power in dB of windows of 25 ms (Hann) every 5 ms: up to half the sample rate, 70 dB deep.
function drawSpectrum(canvas, wave, rate) {
  const length = Math.round(0.025 * rate), shift = Math.round(0.005 * rate);
  const size = 2 ** Math.ceil(Math.log2(length)), bins = size / 2;
  const frames = Math.max(1, Math.floor((wave.length - length) / shift) + 1);
  const power = new Float32Array(frames * bins);
  let loudest = -Infinity;
  for (let t = 0; t < frames; t++) {
    const re = new Float64Array(size), im = new Float64Array(size);
    for (let i = 0; i < length && t * shift + i < wave.length; i++) {
      re[i] = wave[t * shift + i] * (0.5 - 0.5 * Math.cos((2 * Math.PI * i) / (length - 1)));
    }
    transform(re, im);
    for (let f = 0; f < bins; f++) {
      const level = 10 * Math.log10(re[f] ** 2 + im[f] ** 2 + 1e-12);
      power[t * bins + f] = level;
      loudest = Math.max(loudest, level);
    }
  }
  canvas.width = frames;
  canvas.height = bins;
  const context = canvas.getContext("2d");
  const image = context.createImageData(frames, bins);
  for (let t = 0; t < frames; t++) {
    for (let f = 0; f < bins; f++) {
      const grey = 255 * Math.min(1, Math.max(0, (loudest - power[t * bins + f]) / 70));
      image.data.set([grey, grey, grey, 255], 4 * ((bins - 1 - f) * frames + t));
    }
  }
  context.putImageData(image, 0, 0);
}

async function spectrum(box, audio, utterance, heard, run) {
  const canvas = make("canvas", { role: "img", "aria-label": `Spectrogram of ${utterance.id}` });
  const now = make("div", { class: "now", hidden: true });
  const wide = make("div", { style: `min-width: ${Math.round(80 * utterance.seconds)}px` });
  const strip = (what, words) => {
    const line = make("div", { class: "words", "aria-label": what });
    for (const [word, start, seconds, confidence] of words ?? []) {
      const place = `left: ${(100 * start) / utterance.seconds}%; width: ${(100 * seconds) / utterance.seconds}%`;
      const sure = typeof confidence === "number" ? `, confidence ${confidence.toFixed(2)}` : "";
      line.append(make("button", {
        type: "button", style: place, title: `${word}, ${start.toFixed(2)} s${sure}`,
        onclick: () => { audio.currentTime = start; audio.play(); },
      }, word));
    }
    return line;
  };
  wide.append(...(heard.said ? [strip("reference words", heard.said)] : []), canvas, now, strip(`words of ${run}`, heard.found[run]));
  const place = make("div", { class: "spectrum", tabindex: "0" }, wide);
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const above = heard.said ? "reference words above, " : "";
  const below = `words of ${run} below`;
  box.append(place, make("p", { class: "notes" }, `Spectrogram, 0 to ${heard.rate / 2000} kHz, ${dark ? "bright" : "dark"} is loud; ${above}${heard.found[run] ? below : "word times of this run are unknown"}. A word plays from there.`));
  audio.addEventListener("timeupdate", () => {
    now.hidden = false;
    now.style.left = `${(100 * audio.currentTime) / utterance.seconds}%`;
    now.style.top = `${canvas.offsetTop}px`;
  });
  const context = new OfflineAudioContext(1, 1, heard.rate);
  const sound = await context.decodeAudioData(bytesOf(heard.flac));
  drawSpectrum(canvas, sound.getChannelData(0), heard.rate);
  canvas.dataset.drawn = "yes";
}

// --- two runs, speakers, confusions --------------------------------------------------------------

// A table whose first columns are texts, the others numbers.
function tableOf(name, columns, rows, texts = 1) {
  const kind = (i) => (i < texts ? "text" : "number");
  const heads = columns.map((text, i) => make("th", {
    scope: "col", class: kind(i), "data-first": i < texts ? "ascending" : "descending" }, text));
  const lines = rows.map((row) => make("tr", {}, ...row.map((cell, i) =>
    make(i ? "td" : "th", i ? { class: kind(i) } : { scope: "row", class: "text" }, String(cell)))));
  const table = make("table", {}, make("thead", {}, make("tr", {}, ...heads)), make("tbody", {}, ...lines));
  headings(table, (column, direction) => sortRows(table, column, direction));
  const save = () => download(`${name}.csv`, [columns, ...rows]);
  return [
    make("div", { class: `scroll ${rows.length > 12 ? "tall" : ""}`, tabindex: "0" }, table),
    make("div", { class: "below" }, make("button", { type: "button", onclick: save, "aria-label": `Save ${name}.csv` }, "Save as CSV")),
  ];
}

function showComparison() {
  const { split, run, other } = state();
  const place = byId("compared");
  place.hidden = other < 0 || other === run;
  if (place.hidden) return;
  const [a, b] = [form.run.value, form.other.value];
  const won = split.fewer[run][other], lost = split.fewer[other][run];
  const rate = (i) => split.counts[i][1] / split.counts[i][0];
  const texts = [
    `${a} makes ${percent(rate(run))} % word errors on ${form.split.value} and ${b} ${percent(rate(other))} %: ` +
      `${signed(rate(run) - rate(other))} points. ${a} has fewer errors than ${b} in ${count(won)} utterances and more in ${count(lost)}.`,
  ];
  const pair = split.compared?.pairs.find(([i, j]) => (i === run && j === other) || (i === other && j === run));
  if (pair) {
    const sign = pair[1] === run ? 1 : -1;
    const [low, high] = [sign * pair[3], sign * pair[4]].sort((x, y) => x - y);
    texts.push(`95 % interval of the difference ${signed(low)} to ${signed(high)} points, p = ${pair[5].toPrecision(2)} ` +
      `(paired bootstrap over ${count(split.compared.units)} ${split.compared.over}).`);
  } else texts.push("No p-value: scales were chosen on this split, or there are too few units for the bootstrap.");
  const [mine, theirs] = [data.settings[a] ?? {}, data.settings[b] ?? {}];
  const keys = [...new Set([...Object.keys(mine), ...Object.keys(theirs)])].sort();
  const differ = keys.filter((key) => mine[key] !== theirs[key]).map((key) => [key, mine[key] ?? "–", theirs[key] ?? "–"]);
  const show = (key) => () => { form.show.value = key; list(); byId("utterances").scrollIntoView(); };
  place.replaceChildren(
    make("div", {},
      make("h3", {}, `${a} against ${b}`),
      ...texts.map((text) => make("p", {}, text)),
      make("div", { class: "below" },
        make("button", { type: "button", onclick: show("won") }, "Show better"),
        make("button", { type: "button", onclick: show("lost") }, "Show worse"))),
    make("div", {},
      make("h3", {}, "Settings that differ"),
      ...(differ.length ? tableOf(`settings-${a}-${b}`, ["setting", a, b], differ, 3) : [make("p", {}, "None.")])),
  );
}

function showSpeakers() {
  const { split, run } = state();
  const place = byId("speakers");
  if (split.speakers.length < 2) {
    place.replaceChildren(make("p", {}, `All utterances of ${form.split.value} are of one speaker, ${split.speakers[0].name}.`));
    return;
  }
  const rows = split.speakers.map((speaker) => [
    speaker.name,
    speaker.words ? percent(speaker.errors[run] / speaker.words) : "–",
    speaker.ci95 ? speaker.ci95[run].map((limit) => percent(limit)).join(" – ") : "–",
    speaker.errors[run], speaker.words, speaker.utterances,
  ]);
  rows.sort((x, y) => compareKeys(sortKey(y[1]), sortKey(x[1])));
  const columns = ["speaker", "WER %", "95 % interval", "errors", "words", "utterances"];
  place.replaceChildren(
    ...tableOf(`speakers-${form.run.value}-${form.split.value}`, columns, rows),
    make("p", { class: "notes" }, "Interval: bootstrap over the speaker's utterances; none for a single utterance."),
  );
}

function showConfusions() {
  const { split, run } = state();
  const place = byId("confusions");
  const found = split.confusions[run];
  if (!found.length) {
    place.replaceChildren(make("p", {}, `${form.run.value} makes no errors on ${form.split.value}.`));
    return;
  }
  const rows = found.map(([said, heard, times]) => [said ?? "∗", heard ?? "∗", times]);
  const name = `confusions-${form.run.value}-${form.split.value}`;
  place.replaceChildren(...tableOf(name, ["reference", "hypothesis", "times"], rows, 2));
  for (const row of place.querySelector("tbody").rows) {
    const [said, heard] = [row.cells[0].textContent, row.cells[1].textContent];
    const find = () => { form.find.value = `${said} > ${heard}`; list(); byId("utterances").scrollIntoView(); };
    row.append(make("td", {}, make("button", { type: "button", onclick: find, "aria-label": `Show utterances with ${said} > ${heard}` }, "show")));
  }
  place.querySelector("thead tr").append(make("td"));
  place.append(make("p", { class: "notes" }, "The most frequent; ∗ stands for no word: an insertion or a deletion."));
}

// --- choices ------------------------------------------------------------------------------------

function list() {
  chosen.shown = SHOWN;
  listUtterances();
}

function choose() {
  fillShows();
  showComparison();
  showSpeakers();
  showConfusions();
  list();
}

function start() {
  const splits = Object.keys(data.splits);
  fill(form.split, splits.map((split) => [split, split]), data.split);
  form.split.closest("label").hidden = splits.length < 2;
  fillRuns();
  form.split.addEventListener("change", () => { fillRuns(); choose(); });
  for (const field of [form.run, form.other]) field.addEventListener("change", choose);
  for (const field of [form.show, form.speaker]) field.addEventListener("change", list);
  form.find.addEventListener("input", list);
  form.addEventListener("submit", (event) => event.preventDefault());
  byId("more").addEventListener("click", () => { chosen.shown += SHOWN; listUtterances(); });
  const table = byId("utterances");
  headings(table, (column, direction) => {
    chosen.sort = table.tHead.rows[0].cells[column].dataset.key;
    chosen.direction = direction;
    list();
  });
  byId("save").addEventListener("click", () => {
    const { run } = state();
    const rows = listed.map(({ utterance, errors }) => [
      utterance.id, utterance.speaker, utterance.seconds, utterance.words.length, errors, utterance.words.join(" "),
      aligned(utterance.words, utterance.edits[run]).map(([, found]) => found).filter((found) => found !== null).join(" "),
    ]);
    download(`utterances-${form.run.value}-${form.split.value}.csv`,
      [["id", "speaker", "seconds", "words", "errors", "reference", "hypothesis"], ...rows]);
  });
  choose();
}

if (form) start();

// --- curves -------------------------------------------------------------------------------------

const svg = (tag, attributes, ...children) => {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
};

function ticks(low, high, wanted) {
  const rough = (high - low) / wanted, power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((m) => m * power >= rough);
  const found = [];
  for (let x = Math.ceil(low / step) * step; x <= high + 1e-9 * step; x += step) found.push(x);
  return found;
}

const LEFT = 62, RIGHT = 10, TOP = 8, BOTTOM = 34, HEIGHT = 260;

// A chart of curves: drag over it, or use the buttons, to zoom.
function chart(place, { title, x, y, log, curves, dots = "dev" }) {
  const all = curves.flatMap((curve) => [...curve.points, ...curve.dots]).filter((p) => p[1] !== null);
  if (!all.length) return;
  const whole = [Math.min(...all.map((p) => p[0])), Math.max(...all.map((p) => p[0]))];
  if (whole[0] === whole[1]) whole[1] += 1;
  let view = [...whole];
  const off = new Set();
  const box = make("div", { class: "drawn" });
  const readout = make("p", { class: "status", "aria-live": "polite" }, "Drag over the curve to zoom.");
  let width = 0, toX, toY;

  function draw() {
    width = Math.max(260, place.clientWidth);
    const on = curves.filter((curve) => !off.has(curve.name));
    const inside = on.flatMap((curve) => [...curve.points, ...curve.dots])
      .filter(([a, b]) => b !== null && a >= view[0] && a <= view[1] && (!log || b > 0)).map((p) => p[1]);
    const scale = log ? Math.log10 : (v) => v;
    let [low, high] = inside.length ? [scale(Math.min(...inside)), scale(Math.max(...inside))] : [0, 1];
    const margin = (high - low) * 0.05 || Math.abs(high) * 0.05 || 1;
    [low, high] = [low - margin, high + margin];
    toX = (v) => LEFT + ((v - view[0]) / (view[1] - view[0])) * (width - LEFT - RIGHT);
    toY = (v) => TOP + ((high - scale(v)) / (high - low)) * (HEIGHT - TOP - BOTTOM);
    const picture = svg("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": `${title}: curves` });
    const clip = `clip-${place.id}`;
    picture.append(svg("clipPath", { id: clip }, svg("rect", { x: LEFT, y: TOP, width: width - LEFT - RIGHT + 4, height: HEIGHT - TOP - BOTTOM })));
    for (const v of ticks(low, high, 5)) {
      const value = log ? 10 ** v : v, at = toY(value);
      picture.append(svg("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: at, y2: at }),
        svg("text", { x: LEFT - 6, y: at + 4, "text-anchor": "end" }, String(+value.toPrecision(3))));
    }
    for (const v of ticks(...view, width / 90)) {
      picture.append(svg("line", { class: "grid", x1: toX(v), x2: toX(v), y1: TOP, y2: HEIGHT - BOTTOM }),
        svg("text", { x: toX(v), y: HEIGHT - BOTTOM + 15, "text-anchor": "middle" }, String(+v.toPrecision(4))));
    }
    picture.append(svg("text", { x: (LEFT + width - RIGHT) / 2, y: HEIGHT - 4, "text-anchor": "middle" }, x));
    const inner = svg("g", { "clip-path": `url(#${clip})` });
    for (const curve of on) {
      const drawn = (points) => points.filter(([, b]) => b !== null && (!log || b > 0))
        .map(([a, b]) => `${toX(a).toFixed(1)},${toY(b).toFixed(1)}`).join(" ");
      const faint = curve.dots.length && curve.points.length ? 0.5 : 1;
      const stroke = `stroke: var(--${curve.colour})`;
      inner.append(svg("polyline", { class: "curve", style: `${stroke}; opacity: ${faint}`, points: drawn(curve.points) }));
      inner.append(svg("polyline", { class: "curve", style: stroke, points: drawn(curve.dots) }));
      for (const [a, b] of curve.dots) {
        if (b !== null) inner.append(svg("circle", { cx: toX(a), cy: toY(b), r: 3, style: `fill: var(--${curve.colour})` }));
      }
    }
    picture.append(inner);
    listen(picture);
    box.replaceChildren(picture);
    place.dataset.view = view.map((v) => +v.toPrecision(6)).join(" ");
  }

  const clamp = (low, high) => {
    const span = Math.min(high - low, whole[1] - whole[0]);
    const from = Math.min(Math.max(low, whole[0]), whole[1] - span);
    view = [from, from + span];
    draw();
  };
  const zoom = (factor) => {
    const middle = (view[0] + view[1]) / 2, half = ((view[1] - view[0]) / 2) * factor;
    clamp(middle - half, middle + half);
  };
  const move = (share) => clamp(view[0] + share * (view[1] - view[0]), view[1] + share * (view[1] - view[0]));

  function listen(picture) {
    let from = null;
    const band = svg("rect", { class: "chosen", y: TOP, height: HEIGHT - TOP - BOTTOM, width: 0 });
    picture.append(band);
    const valueAt = (event) => {
      const frame = picture.getBoundingClientRect();
      const at = ((event.clientX - frame.left) / frame.width) * width;
      return view[0] + ((at - LEFT) / (width - LEFT - RIGHT)) * (view[1] - view[0]);
    };
    picture.addEventListener("pointerdown", (event) => {
      from = valueAt(event);
      picture.setPointerCapture(event.pointerId);
    });
    picture.addEventListener("pointermove", (event) => {
      const at = valueAt(event);
      if (from !== null) {
        band.setAttribute("x", toX(Math.min(from, at)));
        band.setAttribute("width", Math.abs(toX(at) - toX(from)));
        return;
      }
      const near = curves.filter((curve) => !off.has(curve.name)).map((curve) => {
        const points = curve.dots.length ? curve.dots : curve.points;
        const best = points.reduce((b, p) => (Math.abs(p[0] - at) < Math.abs(b[0] - at) ? p : b), points[0]);
        return best && best[1] !== null ? `${curve.name} ${+best[1].toPrecision(4)} at ${+best[0].toPrecision(4)}` : null;
      });
      readout.textContent = near.filter(Boolean).join("; ");
    });
    picture.addEventListener("pointerup", (event) => {
      const at = valueAt(event), wide = Math.abs(toX(at) - toX(from)) > 6;
      const ends = [Math.max(whole[0], Math.min(from, at)), Math.min(whole[1], Math.max(from, at))];
      from = null;
      if (wide && ends[1] > ends[0]) {
        view = ends;
        draw();
      } else band.setAttribute("width", 0);
    });
    picture.addEventListener("pointercancel", () => { from = null; band.setAttribute("width", 0); });
    picture.addEventListener("dblclick", () => clamp(...whole));
  }

  const button = (text, label, onclick) => make("button", { type: "button", "aria-label": `${label}: ${title}`, onclick }, text);
  const legend = make("div", { class: "below legend" }, ...curves.map((curve) => {
    const tick = make("input", { type: "checkbox", checked: true });
    tick.addEventListener("change", () => { tick.checked ? off.delete(curve.name) : off.add(curve.name); draw(); });
    return make("label", {}, tick, make("i", { style: `background: var(--${curve.colour})` }), curve.name);
  }));
  const rows = () => curves.flatMap((curve) => [
    ...curve.points.map((p) => [curve.name, "training", ...p]), ...curve.dots.map((p) => [curve.name, dots, ...p]),
  ]);
  place.replaceChildren(
    make("h3", {}, title), box, curves.length > 1 ? legend : "",
    make("div", { class: "below" },
      button("+", "Zoom in", () => zoom(0.5)), button("−", "Zoom out", () => zoom(2)),
      button("←", "Earlier", () => move(-0.25)), button("→", "Later", () => move(0.25)),
      button("Reset", "Show all", () => clamp(...whole)),
      button("CSV", "Save as CSV", () => download(`${place.id}.csv`, [["run", "on", x, y], ...rows()]))),
    readout,
  );
  draw();
  new ResizeObserver(() => { if (Math.abs(place.clientWidth - width) > 1) draw(); }).observe(place);
}

for (const [id, content] of Object.entries(data.charts)) {
  if (byId(id)) chart(byId(id), content);
}
