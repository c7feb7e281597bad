// Records of a topic: browsing by offset and time, search, and the live tail.
import { html, useEffect, useMemo, useRef, useState } from "./vendor/htm-preact-3.1.1.js";
import { get, readRecords, segment } from "./api.js";
import { count, localInput, plural, shortTime, time } from "./format.js";
import { setQuery } from "./router.js";
import { Table } from "./table.js";
import { useTail } from "./tail.js";
import { Value, headerPart, matcher, partOf, preview } from "./values.js";
import { Empty, Field, Icon, Notice, Search, announce } from "./widgets.js";

const WINDOW = 200;
const KEPT_MAX = 5000;
const SEARCH_WINDOW = 1000;
const SEARCH_FOUND = 50;

const idOf = (record) => `${record.log}:${record.offset}`;
/** Return the records of two lists, each once. */
const union = (one, other) => [...new Map([...one, ...other].map((record) => [idOf(record), record])).values()];

/** Return records in the order of their logs. Logs are merged by time; a record counts as no older than those before it. */
function inOrder(records) {
  const latest = {};
  return [...records]
    .sort((one, other) => one.log - other.log || one.offset - other.offset)
    .map((record) => ({ record, at: (latest[record.log] = Math.max(record.timestamp, latest[record.log] ?? -Infinity)) }))
    .sort((one, other) => one.at - other.at)
    .map(({ record }) => record);
}

/** Return where each log begins and ends now. */
async function readBounds(topic, signal) {
  const { offsets } = await get(`topics/${segment(topic)}/offsets`, signal);
  return Object.fromEntries(offsets.map((each) => [each.log, each]));
}

/** Read one window of each log. `back` reads the records before the position, otherwise those from it on. */
async function readWindows(topic, bounds, positions, { back, limit, signal }) {
  const each = Math.max(1, Math.ceil(limit / Object.keys(positions).length));
  const windows = await Promise.all(
    Object.entries(positions).map(async ([log, position]) => {
      const { start_offset: start, end_offset: end } = bounds[log];
      const from = back ? Math.max(start, position - each) : position;
      const wanted = back ? position - from : each;
      if (typeof from === "number" && (wanted <= 0 || from >= end)) return { log, records: [], first: from, next: from };
      const found = await readRecords(topic, { log, from, limit: wanted, signal });
      const records = found.filter((record) => !back || record.offset < position).map((record) => ({ ...record, log: Number(log) }));
      const first = typeof from === "number" ? from : (records[0]?.offset ?? end);
      return { log, records, first, next: back ? position : records.length ? records.at(-1).offset + 1 : first };
    }),
  );
  return {
    records: windows.flatMap((window) => window.records),
    firsts: Object.fromEntries(windows.map((window) => [window.log, window.first])),
    nexts: Object.fromEntries(windows.map((window) => [window.log, window.next])),
  };
}

/** Return the logs that are shown, with a position for each. */
function positionsOf(logs, log, value) {
  const shown = log === "" ? logs : logs.filter((each) => String(each.log) === log);
  return Object.fromEntries(shown.map((each) => [each.log, value(each)]));
}

/** Return the position of each log that is further on; `back` means towards the beginning. */
function furthest(one, other, back) {
  return Object.fromEntries(Object.entries(one).map(([log, at]) => [log, (back ? Math.min : Math.max)(at, other?.[log] ?? at)]));
}

/** Keep the newest records of each log, and begin where those do. */
function keepNewest(loaded) {
  const logs = Object.keys(loaded.firsts);
  const kept = [];
  const firsts = {};
  for (const log of logs) {
    const own = loaded.records.filter((record) => String(record.log) === log).sort((one, other) => other.offset - one.offset);
    const newest = own.slice(0, Math.ceil(KEPT_MAX / logs.length));
    kept.push(...newest);
    firsts[log] = newest.length < own.length ? newest.at(-1).offset : loaded.firsts[log];
  }
  return { ...loaded, records: kept, firsts };
}

const NOT_SCANNED = { search: "", records: [], positions: null };
const IDLE = { busy: false, error: "", scanned: null };

const STARTS = { newest: "Newest", oldest: "Oldest", offset: "Offset…", time: "Time…" };

function Detail({ record, topic, onClose }) {
  const place = useRef();
  useEffect(() => {
    if (window.matchMedia("(max-width: 760px)").matches) place.current.scrollIntoView({ block: "start" });
  }, [idOf(record)]);
  const headers = record.headers ?? [];
  return html`<section class="panel detail" aria-label="The selected record" ref=${place}>
    <header>
      <h2>Offset ${count(record.offset)}${topic.log_count > 1 && html`, log ${record.log}`}</h2>
      <button class="quiet small" aria-label="Close the record" onClick=${onClose}><${Icon} name="close" /></button>
    </header>
    <div class="body">
      <p class="muted">${time(record.timestamp)}</p>
      <${Value} key=${`k${idOf(record)}`} title="Key" part=${partOf(record, "key")} />
      <${Value} key=${`v${idOf(record)}`} title="Value" part=${partOf(record, "value")} />
      ${headers.length > 0 &&
      html`<h3>Headers</h3>
        <table class="headers">
          <tbody>${headers.map(([name, value], index) => html`<tr key=${index}><th scope="row" class="mono break">${name}</th><td class="mono break">${preview(headerPart(value)) || html`<span class="muted">none</span>`}</td></tr>`)}</tbody>
        </table>`}
    </div>
  </section>`;
}

const TIME = { name: "time", title: "Time", width: "184px", wide: true, render: (record) => html`<span class="muted" title=${time(record.timestamp)}>${shortTime(record.timestamp)}</span>` };

function columnsFor(topic, onOpen, isNarrow) {
  const mono = (record, name) => {
    const part = partOf(record, name);
    if (part.kind === "none") return html`<span class="muted">${name === "value" ? "tombstone" : "–"}</span>`;
    return html`<span class=${`mono${part.kind === "bytes" ? " muted" : ""}`}>${preview(part)}</span>`;
  };
  return [
    {
      name: "offset",
      title: "Offset",
      width: "104px",
      render: (record) => html`<button class="plain" onClick=${() => onOpen(record)}>${count(record.offset)}</button>`,
    },
    ...(topic.log_count > 1 ? [{ name: "log", title: "Log", width: "56px", wide: true, render: (record) => record.log }] : []),
    ...(isNarrow ? [] : [TIME]),
    { name: "key", title: "Key", width: "24%", render: (record) => mono(record, "key") },
    { name: "value", title: "Value", render: (record) => mono(record, "value") },
  ];
}

export function Records({ topic, route }) {
  const [log, setLog] = useState(topic.log_count === 1 ? "0" : (route.query.get("log") ?? ""));
  const [start, setStart] = useState({ kind: "newest", value: "" });
  const [search, setSearch] = useState("");
  const [live, setLive] = useState(false);
  const [paused, setPaused] = useState(false);
  // What is loaded has no gaps: `firsts` and `nexts` are its ends. What a search has found beyond holds for its text only.
  const [loaded, setLoaded] = useState(null);
  const [scan, setScan] = useState(NOT_SCANNED);
  const [work, setWork] = useState({ ...IDLE, busy: true });
  const [selected, setSelected] = useState(null);
  const [fresh, setFresh] = useState(0);
  const running = useRef(new AbortController());
  const back = start.kind === "newest";

  const attempt = async (action) => {
    running.current.abort();
    const ending = (running.current = new AbortController());
    setWork({ ...IDLE, busy: true });
    try {
      await action(ending.signal);
      if (!ending.signal.aborted) setWork(IDLE);
    } catch (error) {
      if (!ending.signal.aborted) setWork({ ...IDLE, error: error.message });
    }
  };
  const stop = () => {
    running.current.abort();
    setWork(IDLE);
  };

  useEffect(() => {
    const given = { offset: Number(start.value), time: `time:${start.value}` }[start.kind];
    const from = { newest: (each) => each.end_offset, oldest: (each) => each.start_offset }[start.kind];
    setScan(NOT_SCANNED);
    attempt(async (signal) => {
      const bounds = await readBounds(topic.name, signal);
      const positions = positionsOf(Object.values(bounds), log, (each) => {
        if (from) return from(each);
        return start.kind === "offset" ? Math.min(Math.max(given, each.start_offset), each.end_offset) : given;
      });
      const found = await readWindows(topic.name, bounds, positions, { back, limit: WINDOW, signal });
      if (signal.aborted) return;
      setLoaded(found);
      setSelected(null);
    });
    setQuery({ log: topic.log_count > 1 ? log : "" });
    return () => running.current.abort();
  }, [topic.name, log, start, fresh]);

  const changeSearch = (text) => {
    if (work.scanned !== null) stop();
    setSearch(text);
  };
  const matches = useMemo(() => matcher(search), [search]);
  const scanned = search && scan.search === search ? scan : NOT_SCANNED;
  const begins = positionsOf(topic.logs, log, (each) => each.start_offset);
  const stillThere = (record) => record.offset >= (begins[record.log] ?? 0);
  const held = useMemo(() => (loaded?.records ?? []).filter(stillThere), [loaded, JSON.stringify(begins)]);
  const known = useMemo(() => union(held, scanned.records.filter(stillThere)), [held, scanned]);
  const shown = useMemo(() => {
    const found = inOrder(known).filter((record) => !search || matches(record));
    return back ? found.reverse() : found;
  }, [known, matches, back]);

  const positions = back ? loaded?.firsts : loaded?.nexts;
  const searched = positions && furthest(positions, scanned.positions, back);
  const areAtEnd = (places) => !places || Object.entries(places).every(([each, at]) => {
    const bounds = topic.logs[each];
    return !bounds || (back ? at <= bounds.start_offset : at >= bounds.end_offset);
  });
  const more = () =>
    attempt(async (signal) => {
      const bounds = await readBounds(topic.name, signal);
      const found = await readWindows(topic.name, bounds, positions, { back, limit: WINDOW, signal });
      if (signal.aborted) return;
      setLoaded((before) => ({
        records: union(before.records, found.records),
        firsts: back ? found.firsts : before.firsts,
        nexts: back ? before.nexts : found.nexts,
      }));
    });

  /** Read on until enough records match, or there are no more. Only matching ones are kept, for this search. */
  const scanOn = () =>
    attempt(async (signal) => {
      setWork({ ...IDLE, busy: true, scanned: 0 });
      const bounds = await readBounds(topic.name, signal);
      let at = searched;
      let records = scanned.records;
      let [found, read] = [0, 0];
      while (found < SEARCH_FOUND) {
        const window = await readWindows(topic.name, bounds, at, { back, limit: SEARCH_WINDOW, signal });
        if (signal.aborted) return;
        const kept = window.records.filter(matches);
        at = back ? window.firsts : window.nexts;
        records = [...records, ...kept];
        found += kept.length;
        read += window.records.length;
        setScan({ search, records, positions: at });
        setWork({ ...IDLE, busy: true, scanned: read });
        const moved = Object.entries(at).some(([each, position]) => (back ? position > bounds[each].start_offset : position < bounds[each].end_offset));
        if (!moved) break;
      }
      announce(`${plural(found, "further record")} found among ${count(read)}.`);
    });

  const ends = positionsOf(topic.logs, log, (each) => each.end_offset);
  const tail = useTail({
    topic: topic.name,
    starts: live && loaded ? loaded.nexts : {},
    ends,
    enabled: live && loaded !== null && back,
    paused,
    onRecords: (arrived) =>
      setLoaded((before) => {
        const after = { ...before, records: union(before.records, arrived) };
        return after.records.length > KEPT_MAX ? keepNewest(after) : after;
      }),
  });
  const toggleLive = () => {
    setPaused(false);
    if (!live && !back) setStart({ kind: "newest", value: "" });
    else if (!live) setFresh((round) => round + 1);
    setLive(!live);
    announce(live ? "Live tail off." : "Live tail on.");
  };

  const columns = useMemo(() => columnsFor(topic, setSelected, selected !== null), [topic.log_count, selected !== null]);
  const newer = back && loaded ? Object.entries(ends).reduce((sum, [each, end]) => sum + Math.max(0, end - (loaded.nexts[each] ?? begins[each])), 0) : 0;
  const record = selected && (loaded?.records.find((each) => idOf(each) === idOf(selected)) ?? selected);
  const note = search ? `${count(shown.length)} of ${plural(known.length, "loaded record")}` : plural(shown.length, "record");
  const empty = html`<${NoRecords} search=${search} topic=${topic} busy=${work.busy} live=${live} />`;
  return html`<div class="tools">
      <${Search} label="Search in keys, values and headers" hint="Search keys and values" value=${search} onInput=${changeSearch} />
      ${topic.log_count > 1 && html`<${LogChoice} topic=${topic} value=${log} onChange=${setLog} />`}
      <${StartChoice} start=${start} onChange=${(next) => { setLive(false); setStart(next); }} />
      <div class="actions spread">
        ${live && html`<button onClick=${() => setPaused(!paused)} aria-pressed=${paused ? "true" : "false"}>${paused ? "Resume" : "Pause"}</button>`}
        ${newer > 0 && !live && html`<button onClick=${() => setFresh((round) => round + 1)}>Show ${plural(newer, "newer record")}</button>`}
        <button aria-pressed=${live ? "true" : "false"} onClick=${toggleLive}>
          <span class=${live && !paused ? "dot good" : "dot"}></span>Live tail
        </button>
      </div>
    </div>
    <p class="hint muted wide">Words are searched everywhere; <code>key:</code>, <code>value:</code> and <code>header:</code> say where, and <code>$.user.id=7</code> compares a field of JSON.</p>
    ${work.error && html`<${Notice} kind="bad" urgent>${work.error}<//>`}
    ${tail.error && live && html`<${Notice} kind="bad" urgent>${tail.error}<//>`}
    <div class=${record ? "browse split" : "browse"}>
      <div class="panel">
        <${Table} label="Records" columns=${columns} items=${shown} keyOf=${idOf} selected=${record && idOf(record)} onSelect=${setSelected}
          empty=${empty} stick=${live && !paused && !record} />
        <div class="table-foot">
          <span class="muted">${note}${tail.skipped > 0 && live ? `, ${count(tail.skipped)} left out to keep up` : ""}</span>
          <${Further} ...${{ work, search, back, more, stop }} isAtEnd=${areAtEnd(positions)} isSearched=${areAtEnd(searched)} scan=${scanOn} />
        </div>
      </div>
      ${record && html`<${Detail} record=${record} topic=${topic} onClose=${() => setSelected(null)} />`}
    </div>`;
}

function NoRecords({ search, topic, busy, live }) {
  if (busy) return html`<${Empty} title="Reading records…" />`;
  if (search) return html`<${Empty} title="No loaded record matches">Search further reads on and keeps what matches.<//>`;
  if (live) return html`<${Empty} title="Waiting for records">They appear here as they arrive.<//>`;
  if (topic.records) return html`<${Empty} title="No records here">Choose another place to begin.<//>`;
  return html`<${Empty} title="No records yet">What is published to this topic appears here.<//>`;
}

function Further({ work, search, isAtEnd, isSearched, back, more, scan, stop }) {
  if (work.scanned !== null) return html`<span><span class="muted">${count(work.scanned)} searched</span> <button class="small" onClick=${stop}>Stop</button></span>`;
  if (isAtEnd) return html`<span class="muted">${back ? "These are the oldest ones" : "These are the newest ones"}</span>`;
  return html`<span class="actions">
    ${search && (isSearched ? html`<span class="muted">All are searched</span>` : html`<button class="small" disabled=${work.busy} onClick=${scan}>Search further</button>`)}
    <button class="small" disabled=${work.busy} onClick=${more}>${back ? "Older records" : "Newer records"}</button>
  </span>`;
}

function LogChoice({ topic, value, onChange }) {
  return html`<${Field} label="Log">
    ${(attributes) => html`<select ...${attributes} value=${value} onChange=${(event) => onChange(event.target.value)}>
      <option value="">All</option>
      ${topic.logs.map((each) => html`<option key=${each.log} value=${each.log}>${each.log}</option>`)}
    </select>`}
  <//>`;
}

function StartChoice({ start, onChange }) {
  const [kind, setKind] = useState(start.kind);
  const [text, setText] = useState("");
  useEffect(() => setKind(start.kind), [start]);
  const choose = (event) => {
    const next = event.target.value;
    setKind(next);
    setText(next === "time" ? localInput(Date.now() - 3_600_000) : "");
    if (next === "newest" || next === "oldest") onChange({ kind: next, value: "" });
  };
  const submit = (event) => {
    event.preventDefault();
    const value = kind === "time" ? new Date(text).getTime() : Number(text);
    if (text !== "" && Number.isFinite(value)) onChange({ kind, value: String(value) });
  };
  return html`<form class="tools-form" onSubmit=${submit}>
    <${Field} label="From">
      ${(attributes) => html`<select ...${attributes} value=${kind} onChange=${choose}>
        ${Object.entries(STARTS).map(([name, title]) => html`<option key=${name} value=${name}>${title}</option>`)}
      </select>`}
    <//>
    ${kind === "offset" && html`<input aria-label="Offset" inputmode="numeric" value=${text} onInput=${(event) => setText(event.target.value)} size="9" />`}
    ${kind === "time" && html`<input aria-label="Time" type="datetime-local" step="1" value=${text} onInput=${(event) => setText(event.target.value)} />`}
    ${(kind === "offset" || kind === "time") && html`<button type="submit">Go</button>`}
  </form>`;
}
